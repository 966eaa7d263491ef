// Build meter: adds up what the threads that build a version do.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "store/base/context.hpp"
#include "store/timing/version_timing.hpp"

namespace weightfs {

class BuildMeter {
 public:
  /// A request that began at `begin` has ended now.
  void add_fetch(Clock::time_point begin, std::uint64_t bytes) noexcept;
  /// Bytes that came with what the plan read: they cost no request.
  void add_planned(std::uint64_t bytes) noexcept { fetched_bytes_ += bytes; }
  /// Bytes of a snapshot that the seed had.
  void add_seeded(std::uint64_t bytes) noexcept { seeded_bytes_ += bytes; }
  void add_stalled(Clock::duration time) noexcept;
  /// `time`: with what is stalled in it.
  void add_made(Clock::duration time) noexcept;
  /// `time`: a part of what is made.
  void add_patched(Clock::duration time, std::uint64_t bytes) noexcept;
  void add_written(Clock::duration time, std::uint64_t bytes) noexcept;

  [[nodiscard]] BuildTiming read() const noexcept;

 private:
  using Ticks = std::atomic<Clock::rep>;
  Ticks first_{Clock::time_point::max().time_since_epoch().count()};
  Ticks last_{Clock::time_point::min().time_since_epoch().count()};
  Ticks stalled_{0}, made_{0}, patching_{0}, writing_{0};
  std::atomic<std::uint64_t> fetched_bytes_{0}, requests_{0}, patched_bytes_{0}, written_bytes_{0},
      seeded_bytes_{0};
};

}  // namespace weightfs
