// Walks: which OPEN ends a path walk through `latest`.
//
// open(2) of a path below `latest` is a READLINK of it and then an OPEN, both by the same thread.
// So an OPEN ends such a walk if the thread's last READLINK told that version, at most kWalkTime
// ago, and no other OPEN of the thread came between.  All threads that are invisible here have the
// number 0; of them each READLINK counts for one OPEN of that version.
//
// Threads: all calls may run in parallel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "store/context.hpp"

namespace weightfs::fs {

inline constexpr std::chrono::seconds kWalkTime{1};
/// How long a version is kept for who was told its number and has not opened anything yet.
inline constexpr std::chrono::seconds kToldTime{5};
/// Walks remembered at a time; of more, the oldest is forgotten.
inline constexpr std::size_t kWalksMax = 4096;

class Walks {
 public:
  /// READLINK told the thread this version.
  void told(pid_t thread, std::uint64_t version, Clock::time_point now);

  /// An OPEN of a file of `version`; 0: of anything else.
  /// Returns: whether it ends a walk through `latest`.
  bool opened(pid_t thread, std::uint64_t version, Clock::time_point now);

  /// True if anybody was told the version within kToldTime.
  [[nodiscard]] bool was_told(std::uint64_t version, Clock::time_point now) const;

  [[nodiscard]] std::size_t size() const;

 private:
  struct Walk {
    std::uint64_t version = 0;
    Clock::time_point at;
  };
  void make_room(Clock::time_point now);

  mutable std::mutex mutex_;          // guards what follows
  std::multimap<pid_t, Walk> walks_;  // one for each thread; of 0 many
  std::map<std::uint64_t, Clock::time_point> told_;
};

}  // namespace weightfs::fs
