#include "store/repository/repository.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/base/log.hpp"
#include "store/base/utc_text.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/repository/probe.hpp"

namespace weightfs {

namespace {

constexpr std::uint64_t kRecordBytesMax = 1u << 20;
constexpr std::size_t kReadAheadBytes = 8u << 20;
constexpr std::string_view kHashesMagic = "WFHASHES";
constexpr unsigned kListedAskedMax = 8;  // numbers from LIST to check with a GET

// Memory needed to read a layout, per byte: large for a layout of many short names, which become
// strings.
constexpr std::uint64_t kLayoutMemoryShare = 24;

// The same for the hashes of a snapshot: as received, inflated, and as used.
constexpr std::uint64_t kHashesMemoryShare = 3;

// Pack headers that may be in memory together.
constexpr std::uint64_t kHeadsInMemory = 8;

constexpr auto kSettleTime = std::chrono::seconds(10);

Error corrupt(std::string_view key, std::string_view why) {
  return {ErrorCode::corrupt, fmt::format("object {}: {}", key, why)};
}

// ---- the record ----

std::string make_record(const std::string& id) {
  const Json record{{"created", static_cast<std::int64_t>(std::time(nullptr))},
                    {"format", kFormat},
                    {"id", id},
                    {"public_keys", Json::array()},
                    {"required_features", Json::array()}};
  return record.dump();
}

bool is_id(std::string_view text) {
  std::array<std::byte, 16> bytes{};
  return from_hex(text, bytes);
}

// The id in a record.  Checks format and features first: a newer record may give the rest another
// meaning.
std::string parse_record(std::string_view bytes, std::string_view url) {
  const std::string what = fmt::format("{} of {}", keys::kRecord, url);
  const Json record = parse_json(bytes, what);
  const std::uint64_t format = json_uint(record, "format", what);
  if (format > kFormat) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the repository {} has format {}, this weightfs knows up to {}; use a "
                            "newer weightfs",
                            url, format, kFormat));
  }
  const Json& features = json_field(record, "required_features", what);
  if (!features.is_array()) throw corrupt(what, "field 'required_features' must be an array");
  for (const Json& feature : features) {
    if (feature == kFeatureRetired) continue;
    throw Error(ErrorCode::unsupported,
                fmt::format("the repository {} needs the feature {}, which this weightfs does not "
                            "know; use a newer weightfs",
                            url, feature.dump()));
  }
  if (format == 0) throw corrupt(what, "format 0 does not exist");
  std::string id = json_string(record, "id", what);
  if (!is_id(id)) throw corrupt(what, "field 'id' must be 32 hex digits");
  return id;
}

// nullopt: there is no record.
std::optional<std::string> find_id(Bucket& bucket, const Context& context) {
  try {
    std::string id =
        parse_record(get_all(bucket, keys::kRecord, kRecordBytesMax, context), bucket.url());
    bucket.set_landmark(keys::kRecord);
    return id;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return std::nullopt;
    throw;
  }
}

Error no_repository(std::string_view url) {
  return {ErrorCode::not_found,
          fmt::format("no weightfs repository at {}; create one with: weightfs init {}", url, url)};
}

// Opens a bucket and checks that it still contains the expected repository.
std::unique_ptr<Bucket> open_known(const std::string& url, const std::string& id,
                                   const BucketOptions& options, const Context& context) {
  std::unique_ptr<Bucket> bucket;
  std::optional<std::string> found;
  try {
    bucket = open_bucket(url, false, options);
    found = find_id(*bucket, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    throw Error(ErrorCode::unavailable, error.what());
  }
  if (!found) throw Error(ErrorCode::unavailable, no_repository(url).what());
  if (*found != id) throw Error(ErrorCode::unavailable, another_repository(url, id, *found));
  return bucket;
}

// ---- objects ----

// Reads a zstd object that must match `ref`.
std::string get_object(Bucket& bucket, const std::string& key, const ObjectRef& ref,
                       std::uint64_t limit_bytes, const Context& context) {
  if (ref.size_bytes > limit_bytes) {
    throw corrupt(key, fmt::format("its manifest says {} bytes, at most {} are allowed",
                                   ref.size_bytes, limit_bytes));
  }
  const std::string frame = get_all(bucket, key, compressed_bytes_max(ref.size_bytes), context);
  std::string bytes = decompress(frame, ref.size_bytes, key);
  if (sha256(as_bytes(bytes)) != ref.sha256)
    throw corrupt(key, "its SHA-256 does not match its name");
  return bytes;
}

// Uploads a content-addressed object unless it exists undamaged; a damaged one is replaced.
void put_object(Bucket& bucket, const std::string& key, const ObjectRef& ref,
                std::string_view bytes, const Context& context) {
  try {
    get_object(bucket, key, ref, ref.size_bytes, context);
    return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::corrupt) throw;
  }
  const std::string frame = compress(bytes);
  bucket.put(key, TextSource(frame), context);
}

ObjectRef ref_of(std::string_view bytes) { return {bytes.size(), sha256(as_bytes(bytes))}; }

// Reads the start of an object in steps, so that a false size does not allocate much.
std::string get_head(Bucket& bucket, const std::string& key, std::uint64_t size_bytes,
                     const Context& context) {
  std::string head;
  while (head.size() < size_bytes) {
    const std::size_t begin = head.size();
    const auto step = std::min<std::uint64_t>(kReadAheadBytes, size_bytes - begin);
    head.resize(begin + static_cast<std::size_t>(step));
    get_exact(bucket, key, begin, std::as_writable_bytes(std::span(head).subspan(begin)), context);
  }
  return head;
}

// The size of the hashes object that a layout implies; inexact above kHashesBytesMax.
std::uint64_t hashes_size(const Layout& layout) {
  std::uint64_t hashes = std::min(layout.chunk_count(), kHashesBytesMax);
  std::uint64_t size = kHashesMagic.size() + 8 * hashes;
  for (const LayoutFile& file : layout.files()) {
    size += sizeof(Sha256) * std::min(piece_count(file.size_bytes), kHashesBytesMax);
    if (size > kHashesBytesMax) break;
  }
  return size;
}

SnapshotHashes parse_hashes(std::string_view bytes, const Layout& layout) {
  SnapshotHashes hashes;
  const std::byte* at = as_bytes(bytes).data() + kHashesMagic.size();
  hashes.chunks.resize(layout.chunk_count());
  for (std::uint64_t& hash : hashes.chunks) {
    hash = load_le<std::uint64_t>(at);
    at += sizeof(hash);
  }
  for (const LayoutFile& file : layout.files()) {
    std::vector<Sha256>& pieces = hashes.pieces.emplace_back(piece_count(file.size_bytes));
    for (Sha256& piece : pieces) {
      std::copy_n(at, piece.size(), piece.begin());
      at += piece.size();
    }
  }
  return hashes;
}

// ---- versions ----

// After these errors the call may still have been carried out.
bool is_lost_reply(ErrorCode code) {
  return code == ErrorCode::unavailable || code == ErrorCode::timed_out ||
         code == ErrorCode::cancelled;
}

// The number of a key "versions/<20 digits>.json"; 0 for any other.
std::uint64_t number_of_key(std::string_view key) {
  if (!key.starts_with(keys::kVersions)) return 0;
  const std::string_view name = key.substr(keys::kVersions.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number > kVersionMax) return 0;
  return keys::manifest(number) == key ? number : 0;
}

// The highest number in LIST after `known`; a hint.
std::uint64_t listed_newest(Bucket& bucket, std::uint64_t known, const Context& context) {
  std::uint64_t newest = known;
  for (std::string after = keys::manifest(known);;) {
    const std::vector<std::string> page = bucket.list(keys::kVersions, after, context);
    for (const std::string& key : page) newest = std::max(newest, number_of_key(key));
    if (page.empty() || page.back() <= after) return newest;
    after = page.back();
  }
}

// The lowest numbers in LIST after `known`, ascending; a hint.
std::vector<std::uint64_t> list_versions_after(Bucket& bucket, std::uint64_t known,
                                               const Context& context) {
  std::vector<std::uint64_t> numbers;
  try {
    for (const std::string& key : bucket.list(keys::kVersions, keys::manifest(known), context)) {
      if (const std::uint64_t number = number_of_key(key); number > known)
        numbers.push_back(number);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::permission) throw;
    log_debug(fmt::format("cannot check the history for gaps: {}", error.what()));
  }
  return numbers;
}

Error conflict_with(const Version& winner) {
  const Manifest& manifest = winner.manifest;
  const std::string tag =
      manifest.tag.empty() ? std::string("no tag") : fmt::format("tag {}", manifest.tag);
  return {ErrorCode::conflict,
          fmt::format(
              "version {} was published by another writer ({}, at {}); run the command again: it "
              "will use that version as its parent",
              winner.number(), tag, utc_text(manifest.time))};
}

}  // namespace

std::string id_of_record(std::string_view bytes, std::string_view url) {
  return parse_record(bytes, url);
}

std::string another_repository(std::string_view url, std::string_view id, std::string_view found) {
  const std::string what =
      found.empty()
          ? fmt::format("there is no repository at {} any more, expected {}", url, id)
          : fmt::format("there is another repository at {} now: {}, expected {}", url, found, id);
  return what +
         "; what is shown stays.  To go on, put the objects of that one back; to follow a new one, "
         "mount again, or sync into an empty directory";
}

namespace keys {

std::string manifest(std::uint64_t version) {
  return fmt::format("{}{:020}.json", kVersions, version);
}
std::string gc_record(std::uint64_t number) { return fmt::format("{}{:020}.json", kGc, number); }
std::string reader(std::string_view id) { return fmt::format("{}{}.json", kReaders, id); }
std::string layout(const Sha256& id) { return "layouts/" + to_hex(id); }
std::string blob(const Sha256& id) { return "blobs/" + to_hex(id); }
std::string pack(std::uint64_t version, std::string_view name) {
  return fmt::format("packs/{}/{}.safetensors", version, name);
}
std::string snapshot_file(std::uint64_t version, std::string_view nonce, std::string_view path) {
  return fmt::format("snapshots/{}/{}/{}", version, nonce, path);
}
std::string snapshot_hashes(std::uint64_t version, std::string_view nonce) {
  return snapshot_file(version, nonce, ".hashes");
}

}  // namespace keys

std::string snapshot_key(const Version& version, std::string_view path) {
  const SnapshotRef& snapshot = *version.manifest.snapshot;
  return snapshot.base ? snapshot.base->key(path)
                       : keys::snapshot_file(version.number(), snapshot.nonce, path);
}

Repository::Repository(std::string id, std::string url, BucketOptions options,
                       std::unique_ptr<Bucket> bucket, Environment environment)
    : id_(std::move(id)),
      url_(std::move(url)),
      options_(std::move(options)),
      environment_(std::move(environment)),
      bucket_(std::move(bucket)) {}

std::unique_ptr<Repository> Repository::init(std::string_view url, bool& created,
                                             const Context& context, const BucketOptions& options) {
  created = false;
  std::unique_ptr<Bucket> bucket = open_bucket(url, true, options);
  if (!find_id(*bucket, context)) {
    require_put_if_absent(*bucket, context);
    // If another process is first, its record is used, below.
    const Bucket::Put put =
        bucket->put_if_absent(keys::kRecord, make_record(random_hex(16)), context);
    created = put == Bucket::Put::created;
  }
  return open(std::move(bucket), context);
}

std::unique_ptr<Repository> Repository::open(std::string_view url, const Context& context,
                                             const BucketOptions& options) {
  const std::string canonical = canonical_url(url);
  std::unique_ptr<Bucket> bucket;
  try {
    bucket = open_bucket(canonical, false, options);
  } catch (const Error& error) {
    const bool is_directory = !directory_of_url(canonical).empty();
    if (is_directory && error.code() == ErrorCode::not_found) throw no_repository(canonical);
    throw;
  }
  return open(std::move(bucket), context);
}

std::unique_ptr<Repository> Repository::open(std::unique_ptr<Bucket> bucket, const Context& context,
                                             Environment environment) {
  std::optional<std::string> id = find_id(*bucket, context);
  if (!id) throw no_repository(bucket->url());
  std::string url = bucket->url();
  return std::unique_ptr<Repository>(new Repository(std::move(*id), std::move(url), {},
                                                    std::move(bucket), std::move(environment)));
}

std::unique_ptr<Repository> Repository::assume(std::string_view url, std::string_view id,
                                               const BucketOptions& options) {
  return std::unique_ptr<Repository>(
      new Repository(std::string(id), canonical_url(url), options, nullptr, process_environment()));
}

Bucket& Repository::bucket(const Context& context) {
  {
    const std::scoped_lock lock(mutex_);
    if (bucket_) return *bucket_;
  }
  std::unique_ptr<Bucket> fresh = open_known(url_, id_, options_, context);
  const std::scoped_lock lock(mutex_);
  if (!bucket_) bucket_ = std::move(fresh);
  return *bucket_;
}

BucketReader& Repository::snapshot_reader(const Version& version, const Context& context) {
  if (version.manifest.snapshot->base) return hub();
  return bucket(context);
}

HubReader& Repository::hub() {
  {
    const std::scoped_lock lock(mutex_);
    if (hub_) return *hub_;
  }
  auto fresh = std::make_unique<HubReader>(find_hub_settings(environment_), environment_);
  const std::scoped_lock lock(mutex_);
  if (!hub_) hub_ = std::move(fresh);
  return *hub_;
}

std::optional<std::uint64_t> Repository::hub_bytes() const {
  const std::scoped_lock lock(mutex_);
  return hub_ ? std::optional(hub_->fetched_bytes()) : std::nullopt;
}

void Repository::check_still_there(const Context& context) {
  const std::optional<std::string> found = find_id(bucket(context), context);
  if (found == id_) return;
  throw Error(ErrorCode::not_found, another_repository(url_, id_, found.value_or("")));
}

std::optional<Version> Repository::find_version(std::uint64_t number, const Context& context) {
  if (number == 0 || number > kVersionMax) return std::nullopt;
  Bucket& from = bucket(context);
  const std::string key = keys::manifest(number);
  Version version;
  try {
    version.manifest_bytes = get_all(from, key, kManifestBytesMax, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    last_answer_ = Clock::now();
    return std::nullopt;
  }
  last_answer_ = Clock::now();
  version.manifest = Manifest::parse(version.manifest_bytes, key);
  if (version.manifest.version != number) {
    throw corrupt(key, fmt::format("it says that it is version {}", version.manifest.version));
  }
  if (version.manifest.repository != id_) {
    throw corrupt(key, fmt::format("it belongs to repository {}, expected {}",
                                   version.manifest.repository, id_));
  }
  version.manifest_sha256 = sha256(as_bytes(version.manifest_bytes));
  return version;
}

std::uint64_t Repository::newest_version(std::uint64_t known, const Context& context) {
  Bucket& from = bucket(context);
  const auto exists = [&](std::uint64_t number) {
    return number <= kVersionMax && has_object(from, keys::manifest(number), context);
  };
  if (!exists(known + 1)) {
    // Is the repository empty, or is its first manifest missing?
    if (const auto later = known == 0 ? find_behind_gap(0, context) : std::nullopt) {
      throw corrupt(
          keys::manifest(1),
          fmt::format(
              "is missing, but version {} exists: the history has a gap.  Restore that object",
              *later));
    }
    return known;
  }
  std::uint64_t newest = known + 1;
  const std::uint64_t hint = listed_newest(from, newest, context);
  if (hint > newest && exists(hint)) newest = hint;
  while (exists(newest + 1)) newest++;
  return newest;
}

Repository::Numbers Repository::list_numbers(std::uint64_t known, const Context& context) {
  constexpr std::size_t kPageKeys = 1000;
  Numbers numbers{known};
  unsigned may_ask = kListedAskedMax;
  std::string after = keys::manifest(known);
  for (;;) {
    std::vector<std::string> page;
    try {
      page = bucket(context).list(keys::kVersions, after, context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::permission) throw;
      return numbers;
    }
    last_answer_ = Clock::now();
    for (const std::string& key : page) {
      const std::uint64_t number = number_of_key(key);
      if (!fill_hole(numbers, number, may_ask, context)) return numbers;
      numbers.newest = std::max(numbers.newest, number);
    }
    // A page that is not full is most likely the last one.
    if (page.size() < kPageKeys || page.back() <= after) return numbers;
    after = page.back();
  }
}

/// Asks for the versions between `numbers` and one that LIST names.  Returns: whether all exist.
bool Repository::fill_hole(Numbers& numbers, std::uint64_t listed, unsigned& may_ask,
                           const Context& context) {
  Bucket& from = bucket(context);
  while (listed > numbers.newest + 1) {
    if (may_ask-- == 0) return false;
    const std::string next = keys::manifest(numbers.newest + 1);
    if (!has_object(from, next, context)) {
      // Unless LIST is wrong, or it was published just now, it was removed.
      const bool is_gap =
          has_object(from, keys::manifest(listed), context) && !has_object(from, next, context);
      if (is_gap) numbers.behind_gap = listed;
      return false;
    }
    numbers.newest++;
  }
  return true;
}

std::optional<std::uint64_t> Repository::find_behind_gap(std::uint64_t newest,
                                                         const Context& context) {
  Bucket& from = bucket(context);
  unsigned asked = 0;
  for (const std::uint64_t number : list_versions_after(from, newest, context)) {
    if (number == newest + 1) return std::nullopt;  // just published
    if (asked++ == kListedAskedMax) break;
    if (!has_object(from, keys::manifest(number), context)) continue;
    // It was written after all lower versions, so one that is missing now was removed.
    if (has_object(from, keys::manifest(newest + 1), context)) return std::nullopt;
    return number;
  }
  return std::nullopt;
}

std::shared_ptr<const Layout> Repository::get_layout(const ObjectRef& ref, const Context& context) {
  const std::string key = keys::layout(ref.sha256);
  if (ref.size_bytes <= kLayoutBytesMax) {
    MemoryBudget().check(kLayoutMemoryShare * ref.size_bytes, key);
  }
  return Layout::parse(get_object(bucket(context), key, ref, kLayoutBytesMax, context), key);
}

std::string Repository::get_blob(const BlobRef& ref, const Context& context) {
  return get_object(bucket(context), keys::blob(ref.sha256), {ref.size_bytes, ref.sha256},
                    kBlobBytesMax, context);
}

namespace {

/// Before any of it is read.
void check_is_possible(const PackRef& ref, const Layout& layout, const std::string& key) {
  const bool is_possible = ref.size_bytes <= kPackBytesMax && ref.head_bytes <= ref.size_bytes &&
                           ref.head_bytes <= PackIndex::head_bytes_max(layout, ref.size_bytes);
  if (!is_possible) {
    throw corrupt(
        key,
        fmt::format(
            "its manifest says {} bytes with a header of {}, which is impossible for its layout",
            ref.size_bytes, ref.head_bytes));
  }
}

void check_head(std::string_view head, const PackRef& ref, const std::string& key) {
  if (sha256(as_bytes(head)) == ref.head_sha256) return;
  throw corrupt(key, "the SHA-256 of its header does not match the manifest");
}

}  // namespace

std::string Repository::get_pack_head(const std::string& key, const PackRef& ref,
                                      const Layout& layout, const Context& context) {
  check_is_possible(ref, layout, key);
  MemoryBudget().check(kHeadsInMemory * ref.head_bytes, key);
  std::string head = get_head(bucket(context), key, ref.head_bytes, context);
  check_head(head, ref, key);
  return head;
}

Repository::PackBytes Repository::get_whole_pack(const std::string& key, const PackRef& ref,
                                                 const Layout& layout, const Context& context) {
  check_is_possible(ref, layout, key);
  MemoryBudget().check(kHeadsInMemory * ref.head_bytes + ref.size_bytes, key);
  PackBytes pack{get_head(bucket(context), key, ref.size_bytes, context), {}};
  const auto head_bytes = static_cast<std::size_t>(ref.head_bytes);
  pack.data = pack.head.substr(head_bytes);
  pack.head.resize(head_bytes);
  check_head(pack.head, ref, key);
  return pack;
}

std::shared_ptr<const PackIndex> Repository::get_pack_index(const std::string& key,
                                                            const PackRef& ref,
                                                            const Layout& layout,
                                                            const Context& context,
                                                            PackRoom* room) {
  const std::string head = get_pack_head(key, ref, layout, context);
  return room == nullptr ? PackIndex::parse(head, ref.size_bytes, layout, key)
                         : PackIndex::parse(head, ref.size_bytes, layout, key, *room);
}

SnapshotHashes Repository::get_snapshot_hashes(std::uint64_t version, const SnapshotRef& ref,
                                               const Layout& layout, const Context& context) {
  const std::string key = keys::snapshot_hashes(version, ref.nonce);
  if (ref.hashes.size_bytes != hashes_size(layout)) {
    throw corrupt(key, fmt::format("its manifest says {} bytes, its layout needs {}",
                                   ref.hashes.size_bytes, hashes_size(layout)));
  }
  MemoryBudget().check(kHashesMemoryShare * ref.hashes.size_bytes, key);
  const std::string bytes = get_object(bucket(context), key, ref.hashes, kHashesBytesMax, context);
  if (!bytes.starts_with(kHashesMagic)) throw corrupt(key, "it does not begin with WFHASHES");
  return parse_hashes(bytes, layout);
}

ObjectRef Repository::put_layout(const Layout& layout, const Context& context) {
  const std::string bytes = layout.serialize();
  const ObjectRef ref = ref_of(bytes);
  put_object(bucket(context), keys::layout(ref.sha256), ref, bytes, context);
  return ref;
}

BlobRef Repository::put_blob(std::string path, std::string_view bytes, const Context& context) {
  const ObjectRef ref = ref_of(bytes);
  put_object(bucket(context), keys::blob(ref.sha256), ref, bytes, context);
  return {std::move(path), ref.size_bytes, ref.sha256};
}

ObjectRef Repository::put_snapshot_hashes(std::uint64_t version, std::string_view nonce,
                                          const SnapshotHashes& hashes, const Context& context) {
  std::string bytes(kHashesMagic);
  for (const std::uint64_t hash : hashes.chunks) append_le(bytes, hash);
  for (const std::vector<Sha256>& pieces : hashes.pieces) {
    for (const Sha256& piece : pieces) bytes += as_text(piece);
  }
  const std::string frame = compress(bytes);
  bucket(context).put(keys::snapshot_hashes(version, nonce), TextSource(frame), context);
  return ref_of(bytes);
}

Version Repository::commit(const Manifest& manifest, const Context& context) {
  Version version{manifest, {}, manifest.serialize()};
  version.manifest_sha256 = sha256(as_bytes(version.manifest_bytes));
  // Never write what no reader could parse.
  Manifest::parse(version.manifest_bytes, keys::manifest(version.number()));
  try {
    const Bucket::Put put = bucket(context).put_if_absent(keys::manifest(version.number()),
                                                          version.manifest_bytes, context);
    if (put == Bucket::Put::created) return version;
  } catch (const Error& error) {
    // It may exist now, but may not be durable.
    if (error.code() == ErrorCode::io || error.code() == ErrorCode::no_memory) {
      throw CommitUnknown(manifest.version, error.code(), error.what());
    }
    if (!is_lost_reply(error.code())) throw;
    if (auto own = settle(manifest, error)) return std::move(*own);
    throw CommitUnknown(
        manifest.version, error.code(),
        fmt::format(
            "the outcome of publishing version {} is unknown: {}; the version did not exist when "
            "checked, but the request may still be carried out",
            manifest.version, error.what()));
  }
  // It already existed: another publish's, or this publish's own from an earlier try.
  const Error exists(ErrorCode::unavailable, "the manifest already exists");
  if (auto own = settle(manifest, exists)) return std::move(*own);
  throw Error(ErrorCode::unavailable,
              fmt::format("version {} existed in bucket {} and is gone again; try again",
                          version.number(), url_));
}

/// Finds out who has the number, if the bucket did not confirm that it is ours.  nullopt: it is
/// free.
std::optional<Version> Repository::settle(const Manifest& manifest, const Error& why) {
  std::optional<Version> there;
  try {
    there = find_version(manifest.version, Context{}.within(kSettleTime));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::corrupt || error.code() == ErrorCode::unsupported) throw;
    throw CommitUnknown(manifest.version, ErrorCode::unavailable,
                        fmt::format("the outcome of publishing version {} is unknown: {}; then: {}",
                                    manifest.version, why.what(), error.what()));
  }
  if (there && there->manifest.nonce != manifest.nonce) throw conflict_with(*there);
  return there;
}

bool Repository::require_feature(std::string_view feature, const Context& context) {
  Bucket& there = bucket(context);
  const std::string what = fmt::format("{} of {}", keys::kRecord, url_);
  const auto names_it = [&](const Json& record) {
    const Json& features = json_field(record, "required_features", what);
    return std::find(features.begin(), features.end(), feature) != features.end();
  };
  const auto read = [&] {
    std::string bytes = get_all(there, keys::kRecord, kRecordBytesMax, context);
    if (parse_record(bytes, url_) != id_) throw corrupt(what, "it is of another repository now");
    return parse_json(bytes, what);
  };
  Json record = read();
  if (names_it(record)) return false;
  record["required_features"].push_back(feature);
  there.put(keys::kRecord, TextSource(record.dump()), context);
  if (!names_it(read())) throw corrupt(what, "the feature that was written to it is not there");
  return true;
}

}  // namespace weightfs
