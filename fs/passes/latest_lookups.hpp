// LatestLookups: which OPEN ends a path walk through a symlink of the mount, `latest` or a tag.
//
// open(2) of a path below a symlink is a READLINK of it and then an OPEN, both by the same thread.
// So an OPEN ends such a walk if the thread's last READLINK told that version, at most kWalkTime
// ago, and no other OPEN of the thread came between.  All threads that are invisible here have the
// number 0; of them each READLINK counts for one OPEN of that version.
//
// A READLINK of readlink(2) begins no walk.  One of a call that only looks (stat) leads the
// thread's next open(2) to what it has looked at: cp takes anything else for a file that was
// replaced.
//
// Threads: all calls may run in parallel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

inline constexpr std::chrono::seconds kWalkTime{1};
/// How long a version is kept for who was told its number and has not opened anything yet.
inline constexpr std::chrono::seconds kToldTime{5};
/// LatestLookups remembered at a time; of more, the oldest is forgotten.
inline constexpr std::size_t kLookupsMax = 4096;

/// What a READLINK told.
struct Walk {
  std::string link;  // the symlink
  std::uint64_t version = 0;
  bool was_newest = false;  // it was what the symlink led to
  bool is_look = false;     // by a call that opens nothing
  bool is_retry = false;    // after an OPEN that was refused
};

class LatestLookups {
 public:
  /// READLINK told the thread this.  Requires: not to readlink(2).
  void told(pid_t thread, const Walk& walk, Clock::time_point now);
  /// READLINK told somebody this version.
  void named(std::uint64_t version, Clock::time_point now);

  /// An OPEN of a file of `version`; 0: of anything else.
  /// Returns: the walk that it ends.
  std::optional<Walk> opened(pid_t thread, std::uint64_t version, Clock::time_point now);

  /// That OPEN was refused: the thread's next READLINK of the symlink is to tell this version.
  void refused(pid_t thread, const std::string& link, std::uint64_t version, Clock::time_point now);

  /// What a READLINK for open(2) must tell, because of what was before; nullopt: anything.
  [[nodiscard]] std::optional<Walk> find_before(pid_t thread, const std::string& link,
                                                Clock::time_point now) const;

  /// True if anybody was told the version within kToldTime.
  [[nodiscard]] bool was_told(std::uint64_t version, Clock::time_point now) const;

  [[nodiscard]] std::size_t size() const;

 private:
  struct Entry {
    Walk walk;
    Clock::time_point at;
    bool is_refused = false;  // no walk: what the next one is to be
  };
  void add(pid_t thread, const Entry& entry);

  // Guards what follows.
  mutable RankedMutex mutex_{LockRank::latest_lookups, "LatestLookups::mutex_"};
  std::multimap<pid_t, Entry> lookups_;  // one for each thread; of 0 many
  std::map<std::uint64_t, Clock::time_point> told_;
};

}  // namespace weightfs::fs
