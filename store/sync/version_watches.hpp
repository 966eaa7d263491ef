// VersionWatches: measures the versions that come to a host, from the poll that finds the manifest
// until the files are on the disk, and records that (store/local/timing_table.hpp).
//
//     note_poll() --> watch() --> note_shown() ------------------> note_synced()
//                            \--> note_streamed() --> note_filled() --/
//
// Nothing is recorded before `latest` has moved, and no call waits for a disk.  Of what was begun
// and never ended the last kWatchesMax are remembered.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/store.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs {

class VersionWatches {
 public:
  static constexpr std::size_t kWatchesMax = 64;

  /// Keeps the reference.
  explicit VersionWatches(Store& store) : store_(store) {}

  /// A poll that began at `begin` has just found that `newest` is the newest version.
  void note_poll(Clock::time_point begin, std::uint64_t newest);

  /// For a version that is to be brought: its first lap begins when its manifest was seen.
  [[nodiscard]] VersionWatch watch(std::uint64_t version) const;

  struct Behind {
    Clock::time_point since;
    bool is_exact = true;        // false: the first poll found that version, so it may be older
    std::int64_t published = 0;  // then: when it was published; 0: not noted
  };
  /// A poll has ended.  `latest` is shown, and the newest version was published at `newest_time`.
  void note_latest(std::uint64_t latest, std::int64_t newest_time);
  /// Since when versions later than `latest` are known to exist; nullopt: there is none.
  [[nodiscard]] std::optional<Behind> find_behind(std::uint64_t latest) const;

  /// `latest` shows it.  Records it, unless it was here before.
  void note_shown(VersionWatch& watch);
  /// It can be opened, and is being filled.  Does nothing if somebody else began that.
  void note_streamed(VersionWatch& watch);
  /// Versions that were filled may be complete: records those.
  void note_filled();
  /// The version is on the disk.
  void note_synced(std::uint64_t version);

 private:
  /// When a manifest was seen, and how long it may have been there before.
  struct Seen {
    Clock::time_point time;
    std::optional<Clock::duration> unseen;
  };

  void record(VersionWatch& watch);
  [[nodiscard]] std::optional<Behind> find_seen_after(std::uint64_t latest) const;

  Store& store_;
  mutable RankedMutex mutex_{LockRank::leaf, "VersionWatches::mutex_"};  // guards what follows
  std::uint64_t newest_ = 0;
  std::optional<Clock::time_point> last_poll_;
  std::map<std::uint64_t, Seen> seen_;  // by the newest version of that poll
  /// Of that `latest`.  Kept, since `seen_` forgets what a host that is far behind would ask for.
  std::optional<std::pair<std::uint64_t, Behind>> behind_;
  std::map<std::uint64_t, VersionWatch> streamed_;
  std::map<std::uint64_t, Clock::time_point> unsynced_;  // since when
};

}  // namespace weightfs
