#include "store/retention/inventory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/format/pack_bytes.hpp"
#include "store/parts/part_objects.hpp"
#include "store/repository/early_records.hpp"
#include "store/repository/skips.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kManifestRequests = 32;
constexpr std::uint64_t kManifestBatch = 4096;

/// What is kept of a manifest: the facts, and what shows that it follows its parent.
struct ReadVersion {
  VersionFacts facts;
  Sha256 parent_sha256{};
};

std::vector<std::string> sorted_names(const DeltaRef& delta) {
  std::vector<std::string> names;
  for (const PackRef& pack : delta.packs) names.push_back(pack.name);
  std::ranges::sort(names);
  return names;
}

[[noreturn]] void throw_missing(std::uint64_t number, std::string_view url) {
  throw Error(ErrorCode::corrupt,
              fmt::format("{} is missing in {}, but later versions exist: the history has a gap. "
                          "Restore that object first",
                          keys::manifest(number), url));
}

std::uint64_t newest_version(Repository& repository, const Context& context) {
  const std::uint64_t newest = repository.newest_version(0, context);
  if (repository.find_behind_gap(newest, context)) throw_missing(newest + 1, repository.url());
  return newest;
}

/// Versions from `first` on, each of which must be there.
std::vector<ReadVersion> read_batch(std::uint64_t first, std::uint64_t count,
                                    Repository& repository, const Context& context,
                                    const WaitTurn& wait_turn) {
  std::vector<ReadVersion> read(static_cast<std::size_t>(count));
  parallel_for(read.size(), kManifestRequests, context, [&](std::size_t i) {
    if (wait_turn) wait_turn(context);
    const auto version = repository.find_version(first + i, context);
    if (!version) throw_missing(first + i, repository.url());
    read[i] = {facts_of(*version), version->manifest.parent_sha256};
  });
  return read;
}

/// What the highest key says is not believed: there is no memory for a batch before all versions
/// below it were found.
std::vector<VersionFacts> read_versions(Repository& repository, const Context& context,
                                        const WaitTurn& wait_turn) {
  const std::uint64_t newest = newest_version(repository, context);
  std::vector<VersionFacts> versions;
  while (versions.size() < newest) {
    const std::uint64_t first = versions.size() + 1;
    const std::uint64_t count = std::min(kManifestBatch, newest - versions.size());
    for (ReadVersion& one : read_batch(first, count, repository, context, wait_turn)) {
      if (one.parent_sha256 != (versions.empty() ? Sha256{} : versions.back().manifest_sha256)) {
        throw Error(ErrorCode::corrupt,
                    fmt::format("version {} does not follow version {}: one of their manifests is "
                                "damaged; weightfs verify {} tells more",
                                one.facts.number, one.facts.number - 1, repository.url()));
      }
      versions.push_back(std::move(one.facts));
    }
  }
  return versions;
}

/// The number of a manifest's key; 0: it is none.
std::uint64_t manifest_number(std::string_view key) {
  std::uint64_t number = 0;
  const std::string_view digits = key.substr(std::min(key.size(), keys::kVersions.size()));
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number <= kVersionMax && keys::manifest(number) == key ? number : 0;
}

HeldObject held(ObjectInfo listed) {
  HeldObject object;
  object.key = std::move(listed.key);
  object.size_bytes = listed.size_bytes;
  object.kind = kind_of(object.key);
  return object;
}

using Place = HeldObject::Place;

Place place_of(const VersionKey& key, const Inventory& inventory) {
  if (key.version > inventory.head()) return Place::above_head;
  return inventory.versions[key.version - 1].names(key) ? Place::named : Place::orphan;
}

Place place_of(const SkipKey& key, const Inventory& inventory) {
  if (key.versions.to > inventory.head()) return Place::above_head;
  const auto skip = inventory.skips.find(key.versions);
  if (skip == inventory.skips.end()) return Place::unfinished;
  const bool is_named =
      key.pack.empty() || std::ranges::binary_search(skip->second.packs, key.pack);
  return is_named ? Place::named : Place::orphan;
}

void take_place(HeldObject& object, const Inventory& inventory) {
  if (object.kind == ObjectKind::manifest) object.version = manifest_number(object.key);
  if (const auto key = find_version_key(object.key)) {
    object.version = key->version;
    object.place = place_of(*key, inventory);
  } else if (const auto skip = find_skip_key(object.key)) {
    object.version = skip->versions.to;
    object.place = place_of(*skip, inventory);
  } else if (const auto part = find_part_version(object.key)) {
    object.version = *part;
  } else if (const auto early = find_early_version(object.key)) {
    object.version = *early;
  }
}

/// nullopt: there is none, or it cannot be used: damaged, newer, or of another history.
std::optional<SkipFacts> find_skip_facts(const std::vector<VersionFacts>& versions,
                                         Repository& repository, const VersionPair& pair,
                                         const Context& context) {
  try {
    std::optional<SkipRecord> record = find_skip(repository, pair, context);
    if (!record) return std::nullopt;
    const bool is_of_history = record->from_sha256 == versions[pair.from - 1].manifest_sha256 &&
                               record->to_sha256 == versions[pair.to - 1].manifest_sha256;
    if (!is_of_history) return std::nullopt;
    SkipFacts facts;
    facts.sha256 = sha256(as_bytes(record->serialize()));  // canonical, so these are its bytes
    facts.packs = sorted_names(record->delta);
    facts.bytes = pack_bytes(record->delta);
    facts.record = std::move(*record);
    return facts;
  } catch (const Error& error) {
    const bool is_verdict =
        error.code() == ErrorCode::corrupt || error.code() == ErrorCode::unsupported;
    if (is_verdict) return std::nullopt;
    throw;
  }
}

[[noreturn]] void throw_not_whole(std::string_view key) {
  throw Error(ErrorCode::corrupt,
              fmt::format("object {}: versions that are kept are built from this snapshot, but it "
                          "is missing, cut or damaged. Restore it",
                          key));
}

/// LIST may lag: what it lacks is settled by reading the last byte.
void check_is_there(const std::string& key, std::uint64_t size_bytes, const Inventory& inventory,
                    Repository& repository, const Context& context, const WaitTurn& wait_turn) {
  const auto listed = std::ranges::lower_bound(inventory.objects, key, {}, &HeldObject::key);
  const bool is_listed = listed != inventory.objects.end() && listed->key == key;
  if (is_listed && listed->size_bytes >= size_bytes) return;
  if (wait_turn) wait_turn(context);
  std::array<std::byte, 1> last{};
  try {
    if (repository.bucket(context).get(key, size_bytes - 1, last, context) == 1) return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
  }
  throw_not_whole(key);
}

/// Read, since nothing says how large they are in the bucket: they are compressed.
void check_hashes(const VersionFacts& version, const Layout& layout, Repository& repository,
                  const Context& context, const WaitTurn& wait_turn) {
  if (wait_turn) wait_turn(context);
  try {
    const SnapshotRef snapshot{version.snapshot, version.snapshot_hashes};
    (void)repository.get_snapshot_hashes(version.number, snapshot, layout, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::corrupt) throw;
    throw_not_whole(keys::snapshot_hashes(version.number, version.snapshot));
  }
}

/// Of all pairs of versions that exist, whose records or packs were listed.
void read_skips(Inventory& inventory, Repository& repository, const Context& context,
                const WaitTurn& wait_turn) {
  for (const HeldObject& object : inventory.objects) {
    const auto key = find_skip_key(object.key);
    if (key && key->versions.to <= inventory.head()) inventory.unfinished.insert(key->versions);
  }
  const std::vector<VersionPair> pairs(inventory.unfinished.begin(), inventory.unfinished.end());
  std::vector<std::optional<SkipFacts>> found(pairs.size());
  parallel_for(pairs.size(), kManifestRequests, context, [&](std::size_t i) {
    if (wait_turn) wait_turn(context);
    found[i] = find_skip_facts(inventory.versions, repository, pairs[i], context);
  });
  for (std::size_t i = 0; i < pairs.size(); i++) {
    if (!found[i]) continue;
    inventory.skips.emplace(pairs[i], std::move(*found[i]));
    inventory.unfinished.erase(pairs[i]);
  }
}

}  // namespace

VersionFacts facts_of(const Version& version) {
  const Manifest& manifest = version.manifest;
  VersionFacts facts;
  facts.number = manifest.version;
  facts.layout = manifest.layout;
  facts.tag = manifest.tag;
  facts.has_delta = manifest.delta.has_value();
  if (manifest.delta) {
    facts.packs = sorted_names(*manifest.delta);
    facts.delta_bytes = pack_bytes(*manifest.delta);
  }
  if (manifest.snapshot) {
    // 32 bytes for each MiB, and 8 for each chunk, which may have 4 MiB or less than one: never
    // less than its size, or one in the bucket, which stays, would be retired for it.
    constexpr std::uint64_t kHashesOfMib = 32;
    facts.snapshot = manifest.snapshot->nonce;
    facts.snapshot_hashes = manifest.snapshot->hashes;
    if (manifest.snapshot->base) {
      facts.hub_bytes = (manifest.snapshot->hashes.size_bytes / kHashesOfMib + 1) << 20;
    }
  }
  facts.manifest_sha256 = version.manifest_sha256;
  return facts;
}

bool VersionFacts::names(const VersionKey& key) const noexcept {
  if (key.kind == VersionKey::Kind::snapshot) return snapshot == key.name;
  return std::ranges::binary_search(packs, key.name);
}

std::string_view plural_of(ObjectKind kind) noexcept {
  switch (kind) {
    case ObjectKind::record:
      return "record";
    case ObjectKind::manifest:
      return "manifests";
    case ObjectKind::layout:
      return "layouts";
    case ObjectKind::blob:
      return "blobs";
    case ObjectKind::snapshot:
      return "snapshots";
    case ObjectKind::pack:
      return "packs";
    case ObjectKind::skip_record:
      return "skip records";
    case ObjectKind::skip_pack:
      return "skip packs";
    case ObjectKind::gc_record:
      return "gc records";
    case ObjectKind::part:
      return "parts";
    case ObjectKind::early:
      return "early records";
    case ObjectKind::reader:
      return "readers";
    case ObjectKind::other:
      return "other";
  }
  return "";
}

ObjectKind kind_of(std::string_view key) noexcept {
  using Kind = ObjectKind;
  if (const auto skip = find_skip_key(key)) {
    return skip->pack.empty() ? Kind::skip_record : Kind::skip_pack;
  }
  constexpr std::array<std::pair<std::string_view, Kind>, 9> kPrefixes{
      {{keys::kVersions, Kind::manifest},
       {keys::kLayouts, Kind::layout},
       {keys::kBlobs, Kind::blob},
       {keys::kSnapshots, Kind::snapshot},
       {keys::kPacks, Kind::pack},
       {keys::kParts, Kind::part},
       {keys::kEarly, Kind::early},
       {keys::kReaders, Kind::reader},
       {keys::kGc, Kind::gc_record}}};
  if (key == keys::kRecord) return Kind::record;
  for (const auto& [prefix, kind] : kPrefixes) {
    if (key.starts_with(prefix)) return kind;
  }
  return Kind::other;
}

Inventory read_inventory(Repository& repository, const Context& context,
                         const WaitTurn& wait_turn) {
  Inventory inventory;
  inventory.versions = read_versions(repository, context, wait_turn);
  Bucket& bucket = repository.bucket(context);
  for (std::string after;;) {
    if (wait_turn) wait_turn(context);
    std::vector<ObjectInfo> page = bucket.list_objects("", after, context);
    if (page.empty() || page.back().key <= after) break;
    after = page.back().key;
    for (ObjectInfo& listed : page) inventory.objects.push_back(held(std::move(listed)));
  }
  read_skips(inventory, repository, context, wait_turn);
  for (HeldObject& object : inventory.objects) take_place(object, inventory);
  return inventory;
}

void check_snapshot(const VersionFacts& version, const Layout& layout, const Inventory& inventory,
                    Repository& repository, const Context& context, const WaitTurn& wait_turn) {
  check_hashes(version, layout, repository, context, wait_turn);
  if (version.hub_bytes != 0) return;
  for (const LayoutFile& file : layout.files()) {
    const std::string key = keys::snapshot_file(version.number, version.snapshot, file.path);
    check_is_there(key, file.size_bytes, inventory, repository, context, wait_turn);
  }
}

bool read_skip(Inventory& inventory, Repository& repository, const VersionPair& versions,
               const Context& context) {
  auto facts = find_skip_facts(inventory.versions, repository, versions, context);
  if (!facts) return false;
  inventory.skips.insert_or_assign(versions, std::move(*facts));
  inventory.unfinished.erase(versions);
  return true;
}

}  // namespace weightfs
