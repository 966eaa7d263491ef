#include "store/streaming/window_waiters.hpp"

#include <utility>

namespace weightfs {

void WindowWaiters::add(std::span<const std::size_t> windows, Wake wake) {
  const auto waiter =
      std::make_shared<Waiter>(Waiter{.windows_left = windows.size(), .wake = std::move(wake)});
  for (const std::size_t window : windows) by_window_[window].push_back(waiter);
}

void WindowWaiters::make_room(std::size_t window, std::vector<Wake>& calls) const {
  const auto found = by_window_.find(window);
  if (found == by_window_.end()) return;
  calls.reserve(calls.capacity() + found->second.size());
}

void WindowWaiters::take_ready(std::size_t window, std::vector<Wake>& calls) {
  const auto found = by_window_.find(window);
  if (found == by_window_.end()) return;
  for (const auto& waiter : found->second) {
    if (--waiter->windows_left > 0 || !waiter->wake) continue;
    calls.push_back(std::exchange(waiter->wake, nullptr));
  }
  by_window_.erase(found);
}

void WindowWaiters::take_all(std::size_t window, std::vector<Wake>& calls) {
  const auto found = by_window_.find(window);
  if (found == by_window_.end()) return;
  for (const auto& waiter : found->second) {
    if (waiter->wake) calls.push_back(std::exchange(waiter->wake, nullptr));
  }
  by_window_.erase(found);
}

void WindowWaiters::take_all(std::vector<Wake>& calls) {
  while (!by_window_.empty()) take_all(by_window_.begin()->first, calls);
}

}  // namespace weightfs
