// Timing totals: how often each phase (store/timing/version_timing.hpp) took how long, since this
// process began.  What the metrics show as histograms.
//
// Threads: a value.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "store/timing/version_timing.hpp"

namespace weightfs {

/// How many times were at most so long.
class TimeHistogram {
 public:
  /// Seconds: a flip takes a few ms, the first version of a large model many minutes.
  static constexpr std::array<double, 13> kBounds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1,
                                                  3,     10,    30,   100,  300, 1000};

  void add(std::chrono::nanoseconds time) noexcept;

  /// Of times at most kBounds[bound] long.
  [[nodiscard]] std::uint64_t count_to(std::size_t bound) const noexcept;
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] double sum_seconds() const noexcept { return sum_seconds_; }

 private:
  std::array<std::uint64_t, kBounds.size()> counts_{};  // above the bound before
  std::uint64_t count_ = 0;
  double sum_seconds_ = 0;
};

struct NamedHistogram {
  std::string_view name;
  TimeHistogram times = {};
};

class TimingTotals {
 public:
  void add(const VersionTiming& timing) noexcept;
  void add(const HandOverTiming& timing) noexcept;
  /// `sync` of a version that was added before.
  void add_sync(std::chrono::nanoseconds sync) noexcept;

  /// Phases of a version's way here, and what was done during `build`; phases of a hand-over.
  [[nodiscard]] const auto& version_phases() const noexcept { return version_phases_; }
  [[nodiscard]] const auto& build_work() const noexcept { return build_work_; }
  [[nodiscard]] const auto& hand_over_phases() const noexcept { return hand_over_phases_; }
  /// From seen to shown; from the rename to publish/ until `latest` shows it.
  [[nodiscard]] const TimeHistogram& versions() const noexcept { return versions_; }
  [[nodiscard]] const TimeHistogram& hand_overs() const noexcept { return hand_overs_; }

  [[nodiscard]] std::uint64_t written_bytes() const noexcept { return written_bytes_; }
  [[nodiscard]] std::uint64_t uploaded_bytes() const noexcept { return uploaded_bytes_; }

 private:
  std::array<NamedHistogram, 8> version_phases_{
      {{"unseen"}, {"wait"}, {"plan"}, {"room"}, {"build"}, {"record"}, {"flip"}, {"sync"}}};
  std::array<NamedHistogram, 5> build_work_{
      {{"fetch"}, {"stalled"}, {"decode"}, {"patch"}, {"write"}}};
  std::array<NamedHistogram, 6> hand_over_phases_{
      {{"seal"}, {"wait"}, {"code"}, {"upload"}, {"commit"}, {"adopt"}}};
  TimeHistogram versions_, hand_overs_;
  std::uint64_t written_bytes_ = 0, uploaded_bytes_ = 0;
};

}  // namespace weightfs
