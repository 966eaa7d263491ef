// Late reads: those that waited for the whole --read-timeout in vain, for a moment.
//
// When a read ahead fails the kernel reads the page that somebody wants once more, by itself.  That
// one is to fail at once: else whoever waits would wait twice as long as he was told.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "fs/base/inode.hpp"
#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

/// Bytes [begin, end) of a file.
struct ReadRange {
  Inode inode = 0;
  std::uint64_t begin_bytes = 0, end_bytes = 0;
};

class TimedOutReads {
 public:
  static constexpr std::chrono::seconds kMoment{1};
  static constexpr std::size_t kReadsMax = 4096;  // older ones are forgotten

  void add(const ReadRange& read, Clock::time_point now);

  /// True if a read that was added within kMoment has all of these bytes.
  [[nodiscard]] bool covers(const ReadRange& read, Clock::time_point now);

 private:
  struct Late {
    ReadRange read;
    Clock::time_point until;
  };
  void forget(Clock::time_point now);  // requires: mutex_ is held

  RankedMutex mutex_{LockRank::leaf, "TimedOutReads::mutex_"};
  std::deque<Late> late_;  // oldest first
};

}  // namespace weightfs::fs
