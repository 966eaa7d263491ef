// Context: how long an operation may take and who may stop it.  Every call that can wait takes one.
//
// Threads: a value; copies are cheap and share the stop state.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string_view>

namespace weightfs {

using Clock = std::chrono::steady_clock;

/// The time of day, in seconds since 1970 (UTC): for records and status, never for waiting.
std::int64_t seconds_now();

struct Context {
  std::stop_token stop;  // default: can never be stopped
  Clock::time_point deadline = Clock::time_point::max();
  bool repeats = true;  // a request that a service fails is sent again after a pause

  /// The same with a deadline of at most `from_now`.
  [[nodiscard]] Context within(Clock::duration from_now) const;

  /// The same for a caller that asks again by itself, sooner than requests are repeated.
  [[nodiscard]] Context once() const;

  /// Throws Error: cancelled if stopped, timed_out if the deadline has passed.
  /// `what` completes "… while WHAT".
  void check(std::string_view what) const;

  /// Waits for this long, unless stopped or past the deadline: then it throws as check().
  void pause(Clock::duration time, std::string_view what) const;
};

/// Reports the progress of a long operation: called from any thread, must be quick, may be empty.
/// `phase` is a word for the user ("reading", "uploading", "writing"); bytes are those of the
/// phase.
using Progress = std::function<void(std::string_view phase, std::uint64_t done_bytes,
                                    std::uint64_t total_bytes)>;

}  // namespace weightfs
