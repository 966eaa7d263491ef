// Poll rhythm: when to look for the next version of a run that publishes at a steady pace.
//
//     |--------|--------|----|--|-|||||||-|--|----|--------|--------|     polls
//                                  due
//
// A new version is expected one median interval after the last one, and also when its save, as far
// as it has come, will be complete (store/sync/save_pace.hpp).  The pause before a poll is an
// eighth of the time to or since that moment, so polls are dense around it and become sparse on
// both sides; a prediction that was wrong by e costs at most e / 8.  They never become sparser than
// the pause of a run whose rhythm is not known.  Each expected moment costs at most about 100 polls
// more than steady ones would, so a version up to 200.
//
// Threads: a PollRhythm belongs to one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>

#include "store/base/context.hpp"

namespace weightfs {

class PollRhythm {
 public:
  /// The shortest pause; a poll that takes longer than this is followed by a pause of its length.
  static constexpr std::chrono::milliseconds kDensest{5};

  /// A poll found one or more new versions.
  void saw_version(Clock::time_point now);

  /// The next version may come at this moment too, until it is seen; nullopt: nothing says when.
  void expect(std::optional<Clock::time_point> due) noexcept { expected_ = due; }

  /// The time between versions that it goes by; nullopt while too few were seen.
  [[nodiscard]] std::optional<Clock::duration> interval() const;

  /// The pause before the next poll.
  /// `steady`: the pause while nothing is expected, and the longest one.
  /// `poll_took`: the duration of the last poll.
  [[nodiscard]] std::chrono::milliseconds pause(Clock::time_point now,
                                                std::chrono::milliseconds steady,
                                                Clock::duration poll_took) const;

 private:
  static constexpr std::size_t kIntervals = 5;  // the median of these counts

  Clock::time_point last_{};               // version; the epoch: none was seen
  std::deque<Clock::duration> intervals_;  // between versions, the newest last
  std::optional<Clock::time_point> expected_;
};

}  // namespace weightfs
