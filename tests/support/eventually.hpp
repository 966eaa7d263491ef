// Eventually: tests wait for conditions, never for a fixed time.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace weightfs::test {

/// Waits for something that another thread does; returns false after a generous limit.
inline bool eventually(const std::function<bool()>& holds,
                       std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  using Clock = std::chrono::steady_clock;
  for (const auto until = Clock::now() + limit; Clock::now() < until;) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // leaves the core to that thread
  }
  return false;
}

}  // namespace weightfs::test
