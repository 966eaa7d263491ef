#include "store/repository/skips.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "store/base/error.hpp"
#include "store/base/log.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kSkipDigits = 20;
constexpr std::size_t kSkipNameSize = 2 * kSkipDigits + 1;  // "<to>-<from>"
constexpr std::string_view kRecordSuffix = ".json", kSkipPackSuffix = ".safetensors";

std::string skip_name(const VersionPair& versions) {
  return fmt::format("{}{:020}-{:020}", keys::kSkips, versions.to, versions.from);
}

std::optional<std::uint64_t> find_number(std::string_view digits) {
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
  if (!is_number || number > kVersionMax) return std::nullopt;
  return number;
}

/// Checks that a record is what its key says.
void check_is_of(const SkipRecord& record, const VersionPair& versions, const std::string& id) {
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::corrupt, fmt::format("object {}: {}", keys::skip_record(versions), why));
  };
  if (record.repository != id) fail("it is of another repository");
  if (record.versions != versions) {
    fail(fmt::format("it is of the skip from version {} to {}", record.versions.from,
                     record.versions.to));
  }
}

}  // namespace

std::string keys::skip_record(const VersionPair& versions) {
  return skip_name(versions) + std::string(kRecordSuffix);
}

std::string keys::skip_pack(const VersionPair& versions, std::string_view name) {
  return fmt::format("{}/{}{}", skip_name(versions), name, kSkipPackSuffix);
}

std::optional<SkipKey> find_skip_key(std::string_view key) {
  if (!key.starts_with(keys::kSkips)) return std::nullopt;
  const std::string_view rest = key.substr(keys::kSkips.size());
  if (rest.size() <= kSkipNameSize || rest[kSkipDigits] != '-') return std::nullopt;
  const auto to = find_number(rest.substr(0, kSkipDigits));
  const auto from = find_number(rest.substr(kSkipDigits + 1, kSkipDigits));
  if (!to || !from || *from == 0 || *to < *from + 2) return std::nullopt;
  SkipKey found{{*from, *to}, {}};
  std::string_view object = rest.substr(kSkipNameSize);
  if (object == kRecordSuffix) return found;
  if (object.front() != '/' || !object.ends_with(kSkipPackSuffix)) return std::nullopt;
  object.remove_prefix(1);
  object.remove_suffix(kSkipPackSuffix.size());
  if (!is_pack_name(object)) return std::nullopt;
  found.pack = object;
  return found;
}

std::vector<ListedSkip> list_skips(Repository& repository, std::uint64_t after,
                                   const Context& context, ListDepth depth) {
  constexpr std::size_t kPageKeys = 1000;
  std::vector<ListedSkip> skips;
  Bucket& bucket = repository.bucket(context);
  // Sorts behind all keys of skips to `after`.
  std::string last = fmt::format("{}{:020}-~", keys::kSkips, after);
  try {
    for (;;) {
      const std::vector<ObjectInfo> page = bucket.list_objects(keys::kSkips, last, context);
      for (const ObjectInfo& object : page) {
        const auto key = find_skip_key(object.key);
        if (!key || key->versions.to <= after) continue;
        const bool is_record = key->pack.empty();
        if (is_record) skips.push_back({key->versions, 0});
        const bool is_of_record = !skips.empty() && skips.back().versions == key->versions;
        if (is_of_record) skips.back().bytes += object.size_bytes;
      }
      if (page.empty() || page.back().key <= last) return skips;
      if (depth == ListDepth::hint && page.size() < kPageKeys) return skips;
      last = page.back().key;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::permission) throw;
    log_debug(fmt::format("skip deltas are not used: {}", error.what()));
    return {};
  }
}

std::optional<SkipRecord> find_skip(Repository& repository, const VersionPair& versions,
                                    const Context& context) {
  const std::string key = keys::skip_record(versions);
  std::string bytes;
  try {
    bytes = get_all(repository.bucket(context), key, kSkipRecordBytesMax, context);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return std::nullopt;
    throw;
  }
  SkipRecord record = SkipRecord::parse(bytes, "object " + key);
  check_is_of(record, versions, repository.id());
  return record;
}

SkipRecord put_skip(Repository& repository, const SkipRecord& record, const Context& context) {
  const std::string key = keys::skip_record(record.versions);
  const std::string bytes = record.serialize();
  (void)SkipRecord::parse(bytes, "object " + key);  // never write what no reader could parse
  const auto put = repository.bucket(context).put_if_absent(key, bytes, context);
  if (put == Bucket::Put::created) return record;
  if (auto there = find_skip(repository, record.versions, context)) return std::move(*there);
  throw Error(ErrorCode::unavailable,
              fmt::format("object {} existed and is gone again; try again", key));
}

}  // namespace weightfs
