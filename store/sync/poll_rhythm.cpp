#include "store/sync/poll_rhythm.hpp"

#include <algorithm>
#include <vector>

namespace weightfs {
namespace {

constexpr int kShare = 8;  // of the time to the expected version
constexpr std::size_t kIntervalsMin = 2;

}  // namespace

void PollRhythm::saw_version(Clock::time_point now) {
  if (last_ != Clock::time_point{}) intervals_.push_back(now - last_);
  if (intervals_.size() > kIntervals) intervals_.pop_front();
  last_ = now;
  expected_.reset();
}

std::optional<Clock::duration> PollRhythm::interval() const {
  if (intervals_.size() < kIntervalsMin) return std::nullopt;
  std::vector<Clock::duration> sorted(intervals_.begin(), intervals_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::chrono::milliseconds PollRhythm::pause(Clock::time_point now, std::chrono::milliseconds steady,
                                            Clock::duration poll_took) const {
  Clock::duration distance = Clock::duration::max();
  if (const auto interval = this->interval())
    distance = std::chrono::abs(now - (last_ + *interval));
  if (expected_) distance = std::min(distance, std::chrono::abs(now - *expected_));
  const Clock::duration pause = std::max({distance / kShare, Clock::duration(kDensest), poll_took});
  if (pause >= steady) return steady;
  return std::chrono::ceil<std::chrono::milliseconds>(pause);
}

}  // namespace weightfs
