// WindowQueue: chooses the next window of a version to make, for PartialVersion.
//
//     asked       requested by a reader, in that order
//     ahead       the windows after those
//     paused      tried when the bucket was away, or written and to be made again: their files, and
//                 their neighbours, wait for them; for every other worker they come after the rest
//     the rest    by number, in runs of kWindowsPerRun for each worker, so that bytes read ahead
//                 for one window serve the next; an idle worker helps the others
//     again       tried before, and failed
//
// The last three are background work: a quarter of the workers does none of it, so that a request
// need not wait until windows that nobody requested are fetched.
//
// A window is taken by one worker only, which then reports the result:
//
//     absent --take()--> being_made --set_here()--> here
//        |                   |---set_written()--> written   its neighbours are needed as well;
//        |                   |                              then set_here() or make_again()
//        ^                   |---pause()---> paused    the bucket was unreachable
//        |-------- later ----|---fail()----> failed    an error to report to readers
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
  enum class State : std::uint8_t { absent, being_made, written, paused, failed, here };

  /// `in_background`: also make windows that nobody requested.  Requires: worker_count > 0.
  WindowQueue(std::size_t window_count, std::size_t worker_count, bool in_background);

  [[nodiscard]] State state(std::size_t window) const { return windows_[window].state; }

  /// Gives the window priority until it is here or failed.
  void ask(std::size_t window);

  /// Queues the window after the requested ones.
  void read_ahead(std::size_t window);

  /// The next window for worker `worker` < worker_count; its state becomes being_made.
  /// Returns: nullopt if there is none now; try again at next_time().
  std::optional<std::size_t> take(std::size_t worker, Clock::time_point now);
  [[nodiscard]] Clock::time_point next_time(Clock::time_point now) const;

  // Results for a window that was taken.  After bad_alloc of any of them nothing has changed.

  void set_here(std::size_t window);  // also for one that is written
  void set_written(std::size_t window);

  /// For a window that is written: it is absent again.
  void make_again(std::size_t window);

  /// Retries the window after a pause, longer with each failure in a row.  When the workers fail
  /// one after another without a success in between, all work pauses.
  void pause(std::size_t window, Clock::time_point now);

  /// For `told_for` readers get the error; then whoever asks has it retried.  In the background it
  /// is retried after that time, doubled twice with further failures, so that a damaged object is
  /// not fetched all the time; or as soon as another window that had failed is here, since somebody
  /// is mending the bucket.  Also for a window that was here and is lost.
  void fail(std::size_t window, Clock::time_point now, Clock::duration told_for);

 private:
  struct Window {
    State state = State::absent;
    bool is_asked = false;
    bool is_ahead = false;       // is, or was, in `ahead_`: once is enough
    bool in_background = false;  // being made without a request
  };
  struct Run {
    std::size_t next = 0, end = 0;
  };
  struct Failing {
    unsigned times = 0;
    Clock::time_point told_until, retry;
  };

  void bring_back(Clock::time_point now);
  void queue_again(std::size_t window);
  void retry_postponed() noexcept;
  void note_success(std::size_t window);
  void set_aside(std::size_t window, State state, Clock::time_point until);
  std::optional<std::size_t> pop(std::deque<std::size_t>& windows);
  std::optional<std::size_t> take_in_background(std::size_t worker);
  std::optional<std::size_t> take_of(Run& run);
  std::optional<std::size_t> help();

  std::vector<Window> windows_;
  std::deque<std::size_t> asked_, ahead_, paused_, again_;     // also windows no longer absent
  std::set<std::pair<Clock::time_point, std::size_t>> aside_;  // by time until which it is aside
  std::map<std::size_t, unsigned> failures_;                   // in a row, of paused windows
  std::map<std::size_t, Failing> failing_;                     // until they are here
  // By time of the next try in the background.
  std::set<std::pair<Clock::time_point, std::size_t>> failed_;
  std::set<std::size_t> postponed_;  // of them, after told_until
  std::vector<Run> runs_;            // by worker
  std::size_t rest_ = 0;             // first window that is in no run
  const std::size_t background_max_;
  std::size_t background_ = 0;  // in progress
  std::size_t failed_in_a_row_ = 0;
  Clock::time_point resume_ = Clock::time_point::min();
  std::minstd_rand random_{std::random_device()()};
};

}  // namespace weightfs
