// LatestLookups: finds the OPEN that ends a path walk through a symlink of the mount, `latest` or a
// tag.
//
// open(2) of a path below a symlink makes a READLINK of the symlink and then an OPEN, both by the
// same thread.  So an OPEN ends a walk if the thread's last READLINK returned that version, at most
// kWalkTime ago, and the thread made no other OPEN in between.  Threads that are invisible here all
// have the number 0; for them each READLINK accounts for one OPEN of that version.
//
// A READLINK by readlink(2) begins no walk.  After a READLINK by a call that only looks (stat), the
// thread's next open(2) is led to what it looked at: otherwise cp takes the file for a replaced
// one.
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
/// How long a version is kept for a caller that got its number and has not opened anything yet.
inline constexpr std::chrono::seconds kToldTime{5};
/// The most lookups remembered; beyond that the oldest is forgotten.
inline constexpr std::size_t kLookupsMax = 4096;

/// What a READLINK has returned.
struct Walk {
  std::string link;  // the symlink
  std::uint64_t version = 0;
  bool was_newest = false;  // the symlink led to it at that time
  bool is_look = false;     // by a call that opens nothing
  bool is_retry = false;    // after a refused OPEN
};

class LatestLookups {
 public:
  /// A READLINK returned this to the thread.  Requires: it was not a readlink(2).
  void told(pid_t thread, const Walk& walk, Clock::time_point now);
  /// A READLINK returned this version to some caller.
  void named(std::uint64_t version, Clock::time_point now);

  /// An OPEN of a file of `version`; 0: of anything else.
  /// Returns: the walk that it ends.
  std::optional<Walk> opened(pid_t thread, std::uint64_t version, Clock::time_point now);

  /// That OPEN was refused: the thread's next READLINK of the symlink must return this version.
  void refused(pid_t thread, const std::string& link, std::uint64_t version, Clock::time_point now);

  /// The walk that a READLINK for open(2) must repeat, after a look or a refusal; nullopt: none.
  [[nodiscard]] std::optional<Walk> find_before(pid_t thread, const std::string& link,
                                                Clock::time_point now) const;

  /// True if a READLINK returned the version to any caller within kToldTime.
  [[nodiscard]] bool was_told(std::uint64_t version, Clock::time_point now) const;

  [[nodiscard]] std::size_t size() const;

 private:
  struct Entry {
    Walk walk;
    Clock::time_point at;
    bool is_refused = false;  // not a walk, but what the next one must be
  };
  void add(pid_t thread, const Entry& entry);

  // Guards the fields below.
  mutable RankedMutex mutex_{LockRank::latest_lookups, "LatestLookups::mutex_"};
  std::multimap<pid_t, Entry> lookups_;  // one for each thread; several for 0
  std::map<std::uint64_t, Clock::time_point> told_;
};

}  // namespace weightfs::fs
