#include "store/parts/wait_rhythm.hpp"

#include <algorithm>

namespace weightfs {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{20}, kLongestPause{1000};
constexpr milliseconds kAskPausePerPart{16};
constexpr unsigned kTurnsAtATime = 8;

}  // namespace

WaitRhythm::WaitRhythm(unsigned parts)
    : parts_(parts), random_(std::random_device{}()), pause_(kFirstPause) {}

bool WaitRhythm::asks(Clock::time_point now) {
  if (now < next_ask_) return false;
  next_ask_ = now + parts_ * kAskPausePerPart;
  return true;
}

bool WaitRhythm::completes(Clock::time_point now) {
  if (is_first_look_) return true;
  const milliseconds completing = parts_ * kCompletingPerPart;
  const milliseconds spread = std::min(kSpreadMax, completing * parts_ / kTurnsAtATime);
  if (!turn_) turn_ = now + between(completing, completing + spread);
  return now >= *turn_;
}

Clock::duration WaitRhythm::pause() {
  is_first_look_ = false;
  const Clock::duration pause = between(pause_ * 3 / 4, pause_ * 5 / 4);
  pause_ = std::min<Clock::duration>(pause_ * 2, kLongestPause);
  return pause;
}

Clock::duration WaitRhythm::between(Clock::duration shortest, Clock::duration longest) {
  return Clock::duration(
      std::uniform_int_distribution<Clock::rep>(shortest.count(), longest.count())(random_));
}

}  // namespace weightfs
