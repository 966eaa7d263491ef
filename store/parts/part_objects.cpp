#include "store/parts/part_objects.hpp"

#include <fmt/format.h>

#include <charconv>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/base/error.hpp"
#include "store/base/source.hpp"
#include "store/bucket/bucket.hpp"
#include "store/os/memory_budget.hpp"
#include "store/parts/part_hashes.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kClaimBytes = 64;
/// As for those of a version (store/repository).
constexpr std::uint64_t kPartLayoutMemoryShare = 24, kPartHashesMemoryShare = 3;

std::string set_prefix(const PartSet& set) {
  return fmt::format("{}{}/{}/", keys::kParts, set.version, set.id);
}

std::string get_part_object(Repository& repository, const PartSet& set, const ObjectRef& ref,
                            const Context& context) {
  const std::string key = keys::part_object(set, ref.sha256);
  const std::string frame =
      get_all(repository.bucket(context), key, compressed_bytes_max(ref.size_bytes), context);
  std::string bytes = decompress(frame, ref.size_bytes, key);
  if (sha256(as_bytes(bytes)) == ref.sha256) return bytes;
  throw Error(ErrorCode::corrupt,
              fmt::format("object {}: its SHA-256 does not match its name", key));
}

/// nullopt: there is no such object.
std::optional<std::string> find_bytes(Repository& repository, const std::string& key,
                                      std::uint64_t bytes_max, const Context& context) {
  try {
    return get_all(repository.bucket(context), key, bytes_max, context);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return std::nullopt;
    throw;
  }
}

/// Its version came to exist meanwhile.
Error gone_again(const std::string& key) {
  return {ErrorCode::unavailable,
          fmt::format("object {} existed and is gone again; try again", key)};
}

void check_place(const PartRecord& record, const PartSet& set, unsigned part,
                 std::string_view repository, std::string_view key) {
  if (record.repository == repository && record.set == set.id && record.version == set.version &&
      record.part == part && record.parts == set.parts && record.tag == set.tag) {
    return;
  }
  throw Error(ErrorCode::corrupt,
              fmt::format("object {}: it says that it is part {} of {} of version {} ({}) in set "
                          "{} of repository {}",
                          key, record.part, record.parts, record.version, record.tag, record.set,
                          record.repository));
}

}  // namespace

namespace keys {

std::string part_record(const PartSet& set, unsigned part) {
  return fmt::format("{}{}-of-{}.json", set_prefix(set), part, set.parts);
}
std::string part_claim(const PartSet& set, unsigned part) {
  return fmt::format("{}{}-of-{}.claim", set_prefix(set), part, set.parts);
}
std::string part_object(const PartSet& set, const Sha256& id) {
  return set_prefix(set) + to_hex(id);
}

}  // namespace keys

std::optional<PartRecord> find_part(Repository& repository, const PartSet& set, unsigned part,
                                    const Context& context) {
  const std::string key = keys::part_record(set, part);
  const auto bytes = find_bytes(repository, key, kPartRecordBytesMax, context);
  if (!bytes) return std::nullopt;
  PartRecord record = PartRecord::parse(*bytes, "object " + key);
  check_place(record, set, part, repository.id(), key);
  return record;
}

FoundPart get_part(Repository& repository, const PartSet& set, PartRecord record,
                   MemoryBudget& memory, const Context& context) {
  FoundPart found;
  const std::string layout_key = keys::part_object(set, record.layout.sha256);
  memory.take(kPartLayoutMemoryShare * record.layout.size_bytes, layout_key);
  found.layout =
      Layout::parse(get_part_object(repository, set, record.layout, context), layout_key);
  const std::string hashes_key = keys::part_object(set, record.hashes.sha256);
  if (record.hashes.size_bytes != part_hashes_size(*found.layout, record.snapshot)) {
    throw Error(
        ErrorCode::corrupt,
        fmt::format("object {}: its record says {} bytes, its layout needs {}", hashes_key,
                    record.hashes.size_bytes, part_hashes_size(*found.layout, record.snapshot)));
  }
  memory.take(kPartHashesMemoryShare * record.hashes.size_bytes, hashes_key);
  found.hashes = parse_part_hashes(get_part_object(repository, set, record.hashes, context),
                                   *found.layout, record.snapshot, hashes_key);
  found.record = std::move(record);
  return found;
}

ObjectRef put_part_object(Repository& repository, const PartSet& set, std::string_view bytes,
                          const Context& context) {
  const ObjectRef ref{bytes.size(), sha256(as_bytes(bytes))};
  const std::string frame = compress(bytes);
  repository.bucket(context).put(keys::part_object(set, ref.sha256), TextSource(frame), context);
  return ref;
}

void claim_part(Repository& repository, const PartSet& set, const PartRecord& record,
                const Context& context) {
  const std::string key = keys::part_claim(set, record.part);
  const std::string content = to_hex(record.content());
  if (repository.bucket(context).put_if_absent(key, content, context) == Bucket::Put::created) {
    return;
  }
  const auto there = find_bytes(repository, key, kClaimBytes, context);
  if (!there) throw gone_again(key);
  if (*there != content) throw other_bytes(set, record.part);
}

PartRecord put_part(Repository& repository, const PartSet& set, const PartRecord& record,
                    const Context& context) {
  const std::string key = keys::part_record(set, record.part);
  const std::string bytes = record.serialize();
  static_cast<void>(PartRecord::parse(bytes, "object " + key));  // what no host could read
  if (repository.bucket(context).put_if_absent(key, bytes, context) == Bucket::Put::created) {
    return record;
  }
  if (auto there = find_part(repository, set, record.part, context)) return std::move(*there);
  throw gone_again(key);
}

Error other_bytes(const PartSet& set, unsigned part) {
  return {ErrorCode::conflict,
          fmt::format("part {} of {} of {} was published, or begun, with other bytes by the same "
                      "run: a new start of the trainer needs a new token (--run) on all hosts",
                      part, set.parts, set.tag)};
}

void remove_part_set(Repository& repository, const PartSet& set, const Context& context) {
  const std::string prefix = set_prefix(set);
  Bucket& bucket = repository.bucket(context);
  for (std::string after;;) {
    const std::vector<std::string> page = bucket.list(prefix, after, context);
    if (page.empty() || page.back() <= after) return;
    after = page.back();
    for (const std::string& key : page) bucket.remove(key, context);
  }
}

std::optional<std::uint64_t> find_part_version(std::string_view key) {
  if (!key.starts_with(keys::kParts)) return std::nullopt;
  key.remove_prefix(keys::kParts.size());
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), version);
  const std::string_view rest = key.substr(static_cast<std::size_t>(end - key.data()));
  const bool is_one = error == std::errc() && version > 0 && version <= kVersionMax &&
                      key.starts_with(std::to_string(version) + "/") && rest.size() > 1;
  return is_one ? std::optional(version) : std::nullopt;
}

}  // namespace weightfs
