#include "store/repository/gc_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/utc_text.hpp"
#include "store/repository/skips.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr unsigned kRecordRequests = 16;
constexpr std::uint64_t kLogMemoryShare = 8;  // bytes of memory for each byte of a record
constexpr std::array<std::size_t, 4> kAhead{1, 2, 8, 32};  // records asked for together

[[noreturn]] void throw_corrupt(std::string_view key, const std::string& why) {
  throw Error(ErrorCode::corrupt, fmt::format("object {}: {}", key, why));
}

/// The bytes of records from `first` on; those behind the first absent one do not count.
std::vector<std::optional<std::string>> fetch_records(Repository& repository, std::uint64_t first,
                                                      std::size_t count, const Context& context) {
  Bucket& bucket = repository.bucket(context);
  std::vector<std::optional<std::string>> records(count);
  parallel_for(count, kRecordRequests, context, [&](std::size_t i) {
    try {
      records[i] = get_all(bucket, keys::gc_record(first + i), kGcRecordBytesMax, context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
    }
  });
  return records;
}

/// A skip delta is needed at most once, then retired, and between versions that can be built.
void check_skips(const GcRecord& record, const GcLog& log, const std::string& key) {
  for (const VersionPair& skip : record.skips) {
    if (!log.skips.contains(skip)) continue;
    throw_corrupt(key, fmt::format("it retires the skip delta from {} to {}, as a record before it",
                                   skip.from, skip.to));
  }
  for (const auto& [skip, sha256] : record.needs) {
    const bool is_new =
        !log.skips.contains(skip) && !record.skips.contains(skip) && !log.needs.contains(skip);
    const bool has_ends = !log.versions.contains(skip.from) && !log.versions.contains(skip.to);
    const std::string object = keys::skip_record(skip);
    if (is_new && has_ends && !log.objects.contains(object)) continue;
    throw_corrupt(key, fmt::format("it needs the skip delta from {} to {}, which is needed or "
                                   "retired, or between versions that are",
                                   skip.from, skip.to));
  }
}

void take_record(GcLog& log, std::string_view bytes, const std::string& repository) {
  const std::string key = keys::gc_record(log.records.size() + 1);
  GcRecord record = GcRecord::parse(bytes, "object " + key);
  if (record.number != log.records.size() + 1) throw_corrupt(key, "it has another number");
  if (record.repository != repository) throw_corrupt(key, "it is of another repository");
  if (record.previous_sha256 != log.last_sha256) {
    throw_corrupt(key, "it does not follow the record before it");
  }
  if (log.deltas.overlaps(record.deltas) || log.snapshots.overlaps(record.snapshots) ||
      log.versions.overlaps(record.versions)) {
    throw_corrupt(key, "it retires what was retired before");
  }
  check_skips(record, log, key);
  log.add(std::move(record));
  log.last_sha256 = sha256(as_bytes(bytes));
}

}  // namespace

void GcLog::add(GcRecord record) {
  deltas.add(record.deltas);
  snapshots.add(record.snapshots);
  versions.add(record.versions);
  needs.insert(record.needs.begin(), record.needs.end());
  skips.insert(record.skips.begin(), record.skips.end());
  for (const VersionPair& skip : record.skips) needs.erase(skip);
  objects.insert(record.objects.begin(), record.objects.end());
  records.push_back(std::move(record));
}

const GcRecord* GcLog::find_record_of(std::uint64_t version) const noexcept {
  const auto found = std::ranges::find_if(
      records, [&](const GcRecord& record) { return record.versions.contains(version); });
  return found == records.end() ? nullptr : &*found;
}

GcLog read_gc_log(Repository& repository, const Context& context) {
  MemoryBudget memory;
  return read_gc_log(repository, memory, context);
}

GcLog read_gc_log(Repository& repository, MemoryBudget& memory, const Context& context) {
  GcLog log;
  for (std::size_t i = 0;; i = std::min(i + 1, kAhead.size() - 1)) {
    for (const auto& bytes :
         fetch_records(repository, log.records.size() + 1, kAhead[i], context)) {
      if (!bytes) return log;
      memory.take(kLogMemoryShare * bytes->size(),
                  fmt::format("the log of retired objects up to {}",
                              keys::gc_record(log.records.size() + 1)));
      take_record(log, *bytes, repository.id());
    }
  }
}

void throw_if_retired(Repository& repository, std::uint64_t version, const Context& context) {
  GcLog log;
  try {
    log = read_gc_log(repository, context);
  } catch (const Error&) {
    return;
  }
  const GcRecord* const record = log.find_record_of(version);
  if (record == nullptr) return;
  // The log never names the newest version.
  const auto [first, last] = log.versions.ranges().front();
  const std::uint64_t oldest = first == 1 ? last + 1 : 1;
  throw Error(
      ErrorCode::not_found,
      fmt::format("version {} was removed by gc at {}; the oldest version that is left is {}",
                  version, utc_text(record->time), oldest));
}

bool append_gc_record(const GcRecord& record, Repository& repository, const Context& context) {
  const std::string key = keys::gc_record(record.number);
  const std::string bytes = record.serialize();
  (void)GcRecord::parse(bytes, "object " + key);  // never write what no reader could parse
  return repository.bucket(context).put_if_absent(key, bytes, context) == Bucket::Put::created;
}

}  // namespace weightfs
