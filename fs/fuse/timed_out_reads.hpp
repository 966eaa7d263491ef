// Timed-out reads: remembers for a moment the reads that have waited for the whole --read-timeout.
//
// When a readahead fails, the kernel reads the requested page again by itself.  That read must fail
// at once, or the caller would wait for twice the timeout.
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

/// The bytes [begin, end) of a file.
struct ReadRange {
  Inode inode = 0;
  std::uint64_t begin_bytes = 0, end_bytes = 0;
};

class TimedOutReads {
 public:
  static constexpr std::chrono::seconds kMoment{1};
  static constexpr std::size_t kReadsMax = 4096;  // beyond that the oldest are forgotten

  void add(const ReadRange& read, Clock::time_point now) noexcept;

  /// True if a read added within kMoment contains all of these bytes.
  [[nodiscard]] bool covers(const ReadRange& read, Clock::time_point now);

 private:
  struct Late {
    ReadRange read;
    Clock::time_point until;
  };
  void forget(Clock::time_point now);  // Requires: mutex_ is held

  RankedMutex mutex_{LockRank::leaf, "TimedOutReads::mutex_"};
  std::deque<Late> late_;  // oldest first
};

}  // namespace weightfs::fs
