// Eventually: tests wait for conditions, never for a fixed time.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace weightfs::test {

/// Waits for something that another thread does; returns false after a generous limit.
inline bool eventually(const std::function<bool()>& holds) {
  using Clock = std::chrono::steady_clock;
  for (const auto limit = Clock::now() + std::chrono::seconds(60); Clock::now() < limit;) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // leaves the core to that thread
  }
  return false;
}

}  // namespace weightfs::test
