#include "store/streaming/window_queue.hpp"

#include <algorithm>
#include <utility>

#include "store/base/retry_delay.hpp"

namespace weightfs {
namespace {

// A reader with a deadline may be waiting, so the pauses stay below 5 s with jitter.
constexpr std::chrono::milliseconds kFirstWindowPause{250};
constexpr unsigned kDoublingsMax = 4;

// A person who mends the bucket may be waiting too.
constexpr unsigned kFailedDoublingsMax = 2;

}  // namespace

WindowQueue::WindowQueue(std::size_t window_count, std::size_t worker_count, bool in_background)
    : windows_(window_count),
      runs_(worker_count),
      background_max_(in_background ? worker_count - worker_count / 4 : 0) {}

void WindowQueue::ask(std::size_t window) {
  Window& asked = windows_[window];
  if (asked.is_asked || asked.state == State::here || asked.state == State::failed) return;
  if (asked.state == State::absent) asked_.push_back(window);
  asked.is_asked = true;
}

void WindowQueue::read_ahead(std::size_t window) {
  Window& ahead = windows_[window];
  if (ahead.is_ahead || ahead.state != State::absent) return;
  ahead_.push_back(window);
  ahead.is_ahead = true;
}

std::optional<std::size_t> WindowQueue::take(std::size_t worker, Clock::time_point now) {
  if (now < resume_) return std::nullopt;
  bring_back(now);
  std::optional<std::size_t> window = pop(asked_);
  if (!window) window = pop(ahead_);
  if (!window && background_ < background_max_) {
    // An object that the bucket goes on refusing holds up no more than half of the workers.
    if (worker % 2 == 1) window = pop(paused_);
    if (!window) window = take_in_background(worker);
    if (!window) window = pop(paused_);
    if (!window) window = pop(again_);
    if (window) {
      windows_[*window].in_background = true;
      background_++;
    }
  }
  if (window) windows_[*window].state = State::being_made;
  return window;
}

Clock::time_point WindowQueue::next_time(Clock::time_point now) const {
  if (now < resume_) return resume_;
  auto next = Clock::time_point::max();
  if (!aside_.empty()) next = aside_.begin()->first;
  if (!failed_.empty()) next = std::min(next, failed_.begin()->first);
  return next;
}

void WindowQueue::bring_back(Clock::time_point now) {
  while (!aside_.empty() && aside_.begin()->first <= now) {
    const std::size_t window = aside_.begin()->second;
    if (windows_[window].state == State::failed) {
      windows_[window].state = State::absent;
    } else {
      queue_again(window);
    }
    aside_.erase(aside_.begin());
  }
  while (!failed_.empty() && failed_.begin()->first <= now) {
    again_.push_back(failed_.begin()->second);
    postponed_.erase(failed_.begin()->second);
    failed_.erase(failed_.begin());
  }
}

void WindowQueue::queue_again(std::size_t window) {
  if (windows_[window].is_asked) {
    asked_.push_back(window);
  } else if (background_max_ > 0) {
    paused_.push_back(window);
  }
  windows_[window].state = State::absent;
}

std::optional<std::size_t> WindowQueue::pop(std::deque<std::size_t>& windows) {
  while (!windows.empty()) {
    const std::size_t window = windows.front();
    windows.pop_front();
    if (windows_[window].state == State::absent) return window;
  }
  return std::nullopt;
}

std::optional<std::size_t> WindowQueue::take_in_background(std::size_t worker) {
  Run& run = runs_[worker];
  for (;;) {
    if (const auto window = take_of(run)) return window;
    if (rest_ == windows_.size()) return help();
    run = {rest_, std::min(rest_ + kWindowsPerRun, windows_.size())};
    rest_ = run.end;
  }
}

std::optional<std::size_t> WindowQueue::take_of(Run& run) {
  while (run.next < run.end) {
    const std::size_t window = run.next++;
    if (windows_[window].state == State::absent) return window;
  }
  return std::nullopt;
}

/// Takes the last window of another worker's run.
std::optional<std::size_t> WindowQueue::help() {
  for (Run& run : runs_) {
    while (run.next < run.end) {
      const std::size_t window = --run.end;
      if (windows_[window].state == State::absent) return window;
    }
  }
  return std::nullopt;
}

void WindowQueue::set_here(std::size_t window) {
  note_success(window);
  windows_[window] = {.state = State::here};
}

void WindowQueue::set_written(std::size_t window) {
  note_success(window);
  windows_[window].state = State::written;
}

void WindowQueue::make_again(std::size_t window) { queue_again(window); }

/// Those whose error is told no more.
void WindowQueue::retry_postponed() noexcept {
  for (const std::size_t window : postponed_) {
    Failing& failing = failing_.at(window);
    auto node = failed_.extract({failing.retry, window});
    if (!node) continue;
    failing.retry = node.value().first = failing.told_until;
    failed_.insert(std::move(node));
  }
  postponed_.clear();
}

void WindowQueue::note_success(std::size_t window) {
  if (windows_[window].in_background) background_--;
  windows_[window].in_background = false;
  failures_.erase(window);
  if (const auto found = failing_.find(window); found != failing_.end()) {
    failed_.erase({found->second.retry, window});
    postponed_.erase(window);
    failing_.erase(found);
    retry_postponed();
  }
  failed_in_a_row_ = 0;
  resume_ = Clock::time_point::min();
}

void WindowQueue::pause(std::size_t window, Clock::time_point now) {
  unsigned& failures = failures_[window];
  set_aside(window, State::paused,
            now + retry_delay(kFirstWindowPause, std::min(failures, kDoublingsMax), random_));
  failures++;
  const std::size_t rounds = ++failed_in_a_row_ / runs_.size();
  if (rounds == 0) return;
  const auto doublings = static_cast<unsigned>(std::min<std::size_t>(rounds - 1, kDoublingsMax));
  resume_ = now + retry_delay(kFirstWindowPause, doublings, random_);
}

void WindowQueue::fail(std::size_t window, Clock::time_point now, Clock::duration told_for) {
  Failing& failing = failing_[window];
  const Clock::time_point told_until = now + told_for;
  const unsigned doublings = std::min(failing.times, kFailedDoublingsMax);
  if (background_max_ > 0) {  // else until somebody asks
    failed_.erase({failing.retry, window});
    failing.retry = now + told_for * (1u << doublings);
    failed_.emplace(failing.retry, window);
    if (doublings > 0) postponed_.insert(window);
  }
  set_aside(window, State::failed, told_until);
  failing.told_until = told_until;
  failing.times++;
  windows_[window].is_asked = false;
  failures_.erase(window);
}

void WindowQueue::set_aside(std::size_t window, State state, Clock::time_point until) {
  aside_.emplace(until, window);
  Window& aside = windows_[window];
  if (aside.in_background) background_--;
  aside.in_background = false;
  aside.is_ahead = false;
  aside.state = state;
}

}  // namespace weightfs
