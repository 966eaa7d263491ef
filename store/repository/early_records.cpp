#include "store/repository/early_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/source.hpp"
#include "store/bucket/bucket.hpp"

namespace weightfs {

static_assert(kEarlyRecordBytesMax <= kRewrittenBytesMax);

std::string keys::early_record(std::uint64_t version) {
  return fmt::format("{}{:020}.json", kEarly, version);
}

std::optional<std::uint64_t> find_early_version(std::string_view key) {
  std::uint64_t version = 0;
  const std::string_view digits = key.substr(std::min(key.size(), keys::kEarly.size()));
  std::from_chars(digits.data(), digits.data() + digits.size(), version);
  const bool is_one = version > 0 && version <= kVersionMax && keys::early_record(version) == key;
  return is_one ? std::optional(version) : std::nullopt;
}

std::optional<EarlyRecord> find_early_record(Repository& repository, std::uint64_t version,
                                             const Context& context) {
  const std::string key = keys::early_record(version);
  std::string bytes;
  try {
    bytes = get_all(repository.bucket(context), key, kEarlyRecordBytesMax, context);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return std::nullopt;
    throw;
  }
  EarlyRecord record = EarlyRecord::parse(bytes, "object " + key);
  if (record.version == version && record.repository == repository.id()) return record;
  throw Error(ErrorCode::corrupt,
              fmt::format("object {}: it says that it is of version {} of repository {}", key,
                          record.version, record.repository));
}

void put_early_record(Repository& repository, const EarlyRecord& record, const Context& context) {
  repository.bucket(context).put(keys::early_record(record.version), TextSource(record.serialize()),
                                 context);
}

void remove_early_record(Repository& repository, std::uint64_t version, const Context& context) {
  repository.bucket(context).remove(keys::early_record(version), context);
}

}  // namespace weightfs
