// Wait rhythm: what a host that waits for the other parts of a version asks the bucket, and when.
// All n hosts wait at once, so each asks the less often the more they are:
//
//     the version    after growing pauses, up to 1 s
//     the records    of the missing parts, kPartsAsked at once: not more often than every n * 16
//                    ms, so that n hosts ask for 1,000 in a second
//     completing     is what the last one to come does at once.  Each of the others has a turn in
//                    case that one is killed, or finds that the parts make no version: later than
//                    completing takes, and spread so that few of them do it at a time, but over no
//                    more than kSpreadMax, since all wait
//
// Threads: a WaitRhythm belongs to one thread at a time.
#pragma once

#include <chrono>
#include <optional>
#include <random>

#include "store/base/context.hpp"

namespace weightfs {

class WaitRhythm {
 public:
  static constexpr unsigned kPartsAsked = 16;
  static constexpr std::chrono::milliseconds kCompletingPerPart{50};  // at a slow bucket
  static constexpr std::chrono::milliseconds kSpreadMax{20'000};

  explicit WaitRhythm(unsigned parts);

  /// Whether to ask for records now.
  [[nodiscard]] bool asks(Clock::time_point now);

  /// All records are there: whether this host is to complete the version now.
  [[nodiscard]] bool completes(Clock::time_point now);

  /// The pause before the next look.
  [[nodiscard]] Clock::duration pause();

 private:
  [[nodiscard]] Clock::duration between(Clock::duration shortest, Clock::duration longest);

  const unsigned parts_;
  std::minstd_rand random_;
  Clock::duration pause_;  // about the next one
  bool is_first_look_ = true;
  Clock::time_point next_ask_{};
  std::optional<Clock::time_point> turn_;  // nullopt: some were missing
};

}  // namespace weightfs
