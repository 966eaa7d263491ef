#include "store/timing/timing_totals.hpp"

#include <algorithm>

namespace weightfs {

void TimeHistogram::add(std::chrono::nanoseconds time) noexcept {
  const double seconds = std::max(std::chrono::duration<double>(time).count(), 0.0);
  const auto* const bound = std::ranges::lower_bound(kBounds, seconds);
  if (bound != kBounds.end()) counts_.at(static_cast<std::size_t>(bound - kBounds.begin()))++;
  count_++;
  sum_seconds_ += seconds;
}

std::uint64_t TimeHistogram::count_to(std::size_t bound) const noexcept {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i <= bound && i < counts_.size(); i++) count += counts_.at(i);
  return count;
}

void TimingTotals::add(const VersionTiming& timing) noexcept {
  if (timing.unseen) version_phases_[0].times.add(*timing.unseen);
  version_phases_[1].times.add(timing.wait);
  version_phases_[2].times.add(timing.plan);
  version_phases_[3].times.add(timing.room);
  version_phases_[4].times.add(timing.build);
  version_phases_[5].times.add(timing.record);
  version_phases_[6].times.add(timing.flip);
  build_work_[0].times.add(timing.work.fetch);
  build_work_[1].times.add(timing.work.stalled);
  build_work_[2].times.add(timing.work.decode);
  build_work_[3].times.add(timing.work.patch);
  build_work_[4].times.add(timing.work.write);
  versions_.add(timing.total());
  written_bytes_ += timing.work.written_bytes;
}

void TimingTotals::add_sync(std::chrono::nanoseconds sync) noexcept {
  version_phases_[7].times.add(sync);
}

void TimingTotals::add(const HandOverTiming& timing) noexcept {
  hand_over_phases_[0].times.add(timing.seal);
  hand_over_phases_[1].times.add(timing.wait);
  hand_over_phases_[2].times.add(timing.code);
  hand_over_phases_[3].times.add(timing.upload);
  hand_over_phases_[4].times.add(timing.commit);
  hand_over_phases_[5].times.add(timing.adopt);
  hand_overs_.add(timing.total());
  uploaded_bytes_ += timing.uploaded_bytes;
}

}  // namespace weightfs
