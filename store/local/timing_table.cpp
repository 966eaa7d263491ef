#include "store/local/timing_table.hpp"

#include <fmt/format.h>

#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/database/record_keys.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kTimingPrefix = "timing/";

std::string timing_key(std::uint64_t version) {
  return std::string(kTimingPrefix) + version_key(version);
}

std::map<std::uint64_t, TimingRecord> load_timings(const Db& db) {
  std::map<std::uint64_t, TimingRecord> records;
  db.scan(ColumnFamily::store, kTimingPrefix, [&](std::string_view key, std::string_view value) {
    try {
      TimingRecord record = parse_timing(value);
      if (key == timing_key(record.version)) records[record.version] = std::move(record);
    } catch (const Error& error) {
      log_warning(error.what());
    }
  });
  return records;
}

}  // namespace

TimingTable::TimingTable(Db& db) : db_(db), records_(load_timings(db)) {}

template <typename Change>
void TimingTable::change(std::uint64_t version, const Change& change) {
  const std::scoped_lock one_writer(write_mutex_);
  TimingRecord record;
  std::optional<std::uint64_t> dropped;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = records_.find(version);
    if (found != records_.end()) record = found->second;
    record.version = version;
    if (!change(record)) return;
    records_[version] = record;
    if (records_.size() > kTimingsMax) {
      dropped = records_.begin()->first;
      records_.erase(records_.begin());
    }
  }
  write(record, dropped);
}

void TimingTable::write(const TimingRecord& record, std::optional<std::uint64_t> dropped) {
  try {
    std::vector<Db::Change> changes{
        {ColumnFamily::store, timing_key(record.version), to_json_text(record)}};
    if (dropped) changes.push_back({ColumnFamily::store, timing_key(*dropped), std::nullopt});
    db_.write(changes, Durability::process);
  } catch (const Error& error) {
    log_debug(
        fmt::format("cannot record how long version {} took: {}", record.version, error.what()));
  }
}

void TimingTable::put(const VersionTiming& timing) {
  change(timing.version, [&](TimingRecord& record) {
    record.brought = timing;
    totals_.add(timing);
    return true;
  });
}

void TimingTable::put(const HandOverTiming& timing) {
  change(timing.version, [&](TimingRecord& record) {
    record.handed_over = timing;
    totals_.add(timing);
    return true;
  });
}

void TimingTable::set_synced(std::uint64_t version, std::chrono::nanoseconds sync) {
  change(version, [&](TimingRecord& record) {
    if (!record.brought) return false;
    record.brought->sync = sync;
    totals_.add_sync(sync);
    return true;
  });
}

std::optional<TimingRecord> TimingTable::find(std::uint64_t version) const {
  const std::scoped_lock lock(mutex_);
  const auto found = records_.find(version);
  if (found == records_.end()) return std::nullopt;
  return found->second;
}

std::optional<TimingRecord> TimingTable::find_last_hand_over() const {
  const std::scoped_lock lock(mutex_);
  for (auto record = records_.rbegin(); record != records_.rend(); ++record) {
    if (record->second.handed_over) return record->second;
  }
  return std::nullopt;
}

std::vector<TimingRecord> TimingTable::list() const {
  const std::scoped_lock lock(mutex_);
  std::vector<TimingRecord> records;
  for (const auto& [version, record] : records_) records.push_back(record);
  return records;
}

TimingTotals TimingTable::totals() const {
  const std::scoped_lock lock(mutex_);
  return totals_;
}

std::vector<TimingRecord> read_timings(const std::filesystem::path& store) {
  constexpr int kTries = 5;  // whoever writes it may replace a file between two steps of this
  for (int tried = 1;; tried++) {
    try {
      std::vector<TimingRecord> records;
      for (auto& [version, record] : load_timings(*Db::open_for_reading(store / "db"))) {
        records.push_back(std::move(record));
      }
      return records;
    } catch (const Error& error) {
      const bool may_pass = error.code() == ErrorCode::corrupt || error.code() == ErrorCode::io;
      if (tried == kTries || !may_pass) throw;
    }
  }
}

}  // namespace weightfs
