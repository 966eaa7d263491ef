#include "store/retention/inventory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kManifestRequests = 32;

/// What is kept of a manifest: the facts, and what shows that it follows its parent.
struct ReadVersion {
  VersionFacts facts;
  Sha256 sha256{}, parent_sha256{};
};

VersionFacts facts_of(const Manifest& manifest) {
  VersionFacts facts;
  facts.number = manifest.version;
  facts.tag = manifest.tag;
  facts.has_delta = manifest.delta.has_value();
  if (manifest.delta) {
    for (const PackRef& pack : manifest.delta->packs) facts.packs.push_back(pack.name);
  }
  std::ranges::sort(facts.packs);
  if (manifest.snapshot) facts.snapshot = manifest.snapshot->nonce;
  return facts;
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

std::vector<VersionFacts> read_versions(Repository& repository, const Context& context) {
  std::vector<ReadVersion> read(static_cast<std::size_t>(newest_version(repository, context)));
  parallel_for(read.size(), kManifestRequests, context, [&](std::size_t i) {
    const auto version = repository.find_version(i + 1, context);
    if (!version) throw_missing(i + 1, repository.url());
    read[i] = {facts_of(version->manifest), version->manifest_sha256,
               version->manifest.parent_sha256};
  });
  std::vector<VersionFacts> versions;
  Sha256 parent{};
  for (ReadVersion& one : read) {
    if (one.parent_sha256 != parent) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("version {} does not follow version {}: one of their manifests is "
                              "damaged; weightfs verify {} tells more",
                              one.facts.number, one.facts.number - 1, repository.url()));
    }
    parent = one.sha256;
    versions.push_back(std::move(one.facts));
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

HeldObject held(ObjectInfo listed, const std::vector<VersionFacts>& versions) {
  HeldObject object;
  object.key = std::move(listed.key);
  object.size_bytes = listed.size_bytes;
  object.kind = kind_of(object.key);
  if (object.kind == ObjectKind::manifest) object.version = manifest_number(object.key);
  const auto place = find_version_key(object.key);
  if (!place) return object;
  object.version = place->version;
  using Place = HeldObject::Place;
  if (place->version > versions.size()) {
    object.place = Place::above_head;
  } else {
    object.place = versions[place->version - 1].names(*place) ? Place::named : Place::orphan;
  }
  return object;
}

}  // namespace

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
    case ObjectKind::skip:
      return "skips";
    case ObjectKind::gc_record:
      return "gc records";
    case ObjectKind::other:
      return "other";
  }
  return "";
}

ObjectKind kind_of(std::string_view key) noexcept {
  using Kind = ObjectKind;
  constexpr std::array<std::pair<std::string_view, Kind>, 7> kPrefixes{
      {{keys::kVersions, Kind::manifest},
       {keys::kLayouts, Kind::layout},
       {keys::kBlobs, Kind::blob},
       {keys::kSnapshots, Kind::snapshot},
       {keys::kPacks, Kind::pack},
       {"skips/", Kind::skip},
       {keys::kGc, Kind::gc_record}}};
  if (key == keys::kRecord) return Kind::record;
  for (const auto& [prefix, kind] : kPrefixes) {
    if (key.starts_with(prefix)) return kind;
  }
  return Kind::other;
}

Inventory read_inventory(Repository& repository, const Context& context) {
  Inventory inventory;
  inventory.versions = read_versions(repository, context);
  Bucket& bucket = repository.bucket(context);
  for (std::string after;;) {
    std::vector<ObjectInfo> page = bucket.list_objects("", after, context);
    if (page.empty() || page.back().key <= after) return inventory;
    after = page.back().key;
    for (ObjectInfo& listed : page) {
      inventory.objects.push_back(held(std::move(listed), inventory.versions));
    }
  }
}

}  // namespace weightfs
