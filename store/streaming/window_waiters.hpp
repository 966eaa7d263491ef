// WindowWaiters: requests for windows that were not here.
//
// Calls are taken under the caller's lock, and made without it.
//
// Threads: none of its own; one caller at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace weightfs {

class WindowWaiters {
 public:
  using Wake = std::function<void()>;

  /// `wake` is to be called once, when all of these windows are here, or one has failed.
  void add(std::span<const std::size_t> windows, Wake wake);
  [[nodiscard]] bool contains(std::size_t window) const { return by_window_.contains(window); }

  /// Makes room in `calls` for those of a window, so that taking them cannot fail.
  void make_room(std::size_t window, std::vector<Wake>& calls) const;

  /// The window is here: takes the calls of requests for which it was the last one missing.
  void take_ready(std::size_t window, std::vector<Wake>& calls);
  /// There is an error to report for the window: takes the calls of all requests for it.
  void take_all(std::size_t window, std::vector<Wake>& calls);
  void take_all(std::vector<Wake>& calls);  // of all windows

 private:
  struct Waiter {
    std::size_t windows_left = 0;
    Wake wake;  // empty: taken
  };
  std::unordered_map<std::size_t, std::vector<std::shared_ptr<Waiter>>> by_window_;
};

}  // namespace weightfs
