// WindowQueue: which window of a version is made next, for PartialVersion.
//
//     asked       by a reader, in the order of asking
//     ahead       the windows behind those
//     again       tried before, and set aside for a while
//     the rest    by number, in runs of kWindowsPerRun for each worker, so that what one has read
//                 ahead for a window serves it for the next; whoever is done helps the others
//
// The last two are background work: a quarter of the workers leaves it to the others, so that who
// asks need not wait until a window that nobody asked for is fetched.
//
// A window is taken by one worker only, who then says what came of it:
//
//     absent --take()--> being_made --set_here()--> here
//        ^                   |---pause()---> paused    the bucket was out of reach
//        |-------- later ----|---fail()----> failed    and that is to be told
//
// Threads: none of its own; one caller at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "store/base/context.hpp"

namespace weightfs {

inline constexpr std::size_t kWindowsPerRun = 8;

class WindowQueue {
 public:
  enum class State : std::uint8_t { absent, being_made, paused, failed, here };

  /// `in_background`: also windows that nobody asked for.  Requires: worker_count > 0.
  WindowQueue(std::size_t window_count, std::size_t worker_count, bool in_background);

  [[nodiscard]] State state(std::size_t window) const { return windows_[window].state; }

  /// It comes first from now on, until it is here or failed.
  void ask(std::size_t window);

  /// It comes behind what is asked for.
  void read_ahead(std::size_t window);

  /// The next window for worker `worker` < worker_count; it is being made then.
  /// Returns: nullopt if there is none now; it may be worth asking again from next_time() on.
  std::optional<std::size_t> take(std::size_t worker, Clock::time_point now);
  [[nodiscard]] Clock::time_point next_time(Clock::time_point now) const;

  // What came of a window that was taken:

  void set_here(std::size_t window);

  /// It is tried again after a pause, longer with each failure in a row.  When the workers fail one
  /// after the other and nothing succeeds in between, all work pauses.
  void pause(std::size_t window, Clock::time_point now);

  /// It is tried again after `until`; who asks before is told.  Also for a window that is here and
  /// turns out not to be.
  void fail(std::size_t window, Clock::time_point until);

 private:
  struct Window {
    State state = State::absent;
    bool is_asked = false;
    bool is_ahead = false;       // is in `ahead_`, or was: once is enough
    bool in_background = false;  // being made, and nobody had asked
  };
  struct Run {
    std::size_t next = 0, end = 0;
  };

  void bring_back(Clock::time_point now);
  void set_aside(std::size_t window, State state, Clock::time_point until);
  std::optional<std::size_t> pop(std::deque<std::size_t>& windows);
  std::optional<std::size_t> take_in_background(std::size_t worker);
  std::optional<std::size_t> take_of(Run& run);
  std::optional<std::size_t> help();

  std::vector<Window> windows_;
  std::deque<std::size_t> asked_, ahead_, again_;  // may hold some that are not absent any more
  std::set<std::pair<Clock::time_point, std::size_t>> aside_;  // until then
  std::map<std::size_t, unsigned> failures_;                   // in a row, of paused windows
  std::vector<Run> runs_;                                      // by worker
  std::size_t rest_ = 0;                                       // first that is in no run
  const std::size_t background_max_;
  std::size_t background_ = 0;  // being made
  std::size_t failed_in_a_row_ = 0;
  Clock::time_point resume_ = Clock::time_point::min();
  std::minstd_rand random_{std::random_device()()};
};

}  // namespace weightfs
