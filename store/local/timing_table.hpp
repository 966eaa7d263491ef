// TimingTable: what a store remembers of how long its versions took on this host
// (store/timing/version_timing.hpp): the last kTimingsMax, whether or not their images are here.
//
// The records are keys of the family that every store has, so a store of an older release opens,
// and an older release opens this one.  A record that cannot be read, or for which there is no
// room, is not an error but a line in the log: nothing depends on it.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"
#include "store/timing/timing_totals.hpp"
#include "store/timing/version_timing.hpp"

namespace weightfs {

inline constexpr std::size_t kTimingsMax = 1024;

class TimingTable {
 public:
  /// Reads the records; keeps the reference.  Throws Error: corrupt, io (the database).
  explicit TimingTable(Db& db);

  /// Takes the place of what is known of the version's way here, or of its hand-over.  Written so
  /// that it survives the process; waits for no disk.
  void put(const VersionTiming& timing);
  void put(const HandOverTiming& timing);
  /// Adds the time after which the version was on the disk, if it is known how it came here.
  void set_synced(std::uint64_t version, std::chrono::nanoseconds sync);

  [[nodiscard]] std::optional<TimingRecord> find(std::uint64_t version) const;
  /// Of the highest version that was handed over.
  [[nodiscard]] std::optional<TimingRecord> find_last_hand_over() const;
  [[nodiscard]] std::vector<TimingRecord> list() const;  // by version, ascending

  /// Of what this process has put.
  [[nodiscard]] TimingTotals totals() const;

 private:
  template <typename Change>
  void change(std::uint64_t version, const Change& change);
  void write(const TimingRecord& record, std::optional<std::uint64_t> dropped);

  Db& db_;
  // Held over the write, so that the records are those of memory; before mutex_.
  RankedMutex write_mutex_{LockRank::timings, "TimingTable::write_mutex_"};
  // Guards the fields below.
  mutable RankedMutex mutex_{LockRank::store, "TimingTable::mutex_"};
  std::map<std::uint64_t, TimingRecord> records_;
  TimingTotals totals_;
};

/// The records of a store, which another process may have open.
/// Throws Error: not_found (there is no store), permission, corrupt, io.
std::vector<TimingRecord> read_timings(const std::filesystem::path& store);

}  // namespace weightfs
