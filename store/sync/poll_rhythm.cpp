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
  const std::optional<Clock::duration> interval = this->interval();
  if (!interval) return steady;
  const Clock::duration distance = now - (last_ + *interval);
  const Clock::duration pause =
      std::max({(distance < Clock::duration{} ? -distance : distance) / kShare,
                Clock::duration(kDensest), poll_took});
  return std::min(std::chrono::ceil<std::chrono::milliseconds>(pause), steady);
}

}  // namespace weightfs
