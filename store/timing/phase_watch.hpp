// Phase watch: reads the clock for a version on its way to a host, or a hand-over on its way to the
// bucket.  Every lap ends a phase: the time since the last lap is added to it, so no moment is
// missed or counted twice.
//
// Threads: one thread at a time; the meter of a VersionWatch: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "store/base/context.hpp"
#include "store/timing/build_meter.hpp"
#include "store/timing/version_timing.hpp"

namespace weightfs {

/// The system's time at a moment of the steady clock: ns since 1970.
std::int64_t wall_ns(Clock::time_point time);

template <typename Timing>
class PhaseWatch {
 public:
  /// `begin`: of the first lap.
  explicit PhaseWatch(Clock::time_point begin) : began_(begin) {}

  Timing timing;

  void lap(std::chrono::nanoseconds Timing::*phase) noexcept {
    const Clock::time_point now = Clock::now();
    timing.*phase += now - std::exchange(began_, now);
  }
  [[nodiscard]] Clock::time_point lap_began() const noexcept { return began_; }

 private:
  Clock::time_point began_;
};

class VersionWatch : public PhaseWatch<VersionTiming> {
 public:
  explicit VersionWatch(std::uint64_t version, Clock::time_point seen = Clock::now());

  std::shared_ptr<BuildMeter> meter = std::make_shared<BuildMeter>();
};

class HandOverWatch : public PhaseWatch<HandOverTiming> {
 public:
  explicit HandOverWatch(std::string name, Clock::time_point begin = Clock::now());

  /// Of a hand-over that an earlier process began, at `time`: seconds since 1970.  By a clock that
  /// may have been set since: at most 30 days count.
  static HandOverWatch since(std::string name, std::int64_t time);
};

/// Ends a phase, if somebody watches.
template <typename Watch, typename Phase>
void lap(Watch* watch, Phase phase) noexcept {
  if (watch != nullptr) watch->lap(phase);
}

}  // namespace weightfs
