#include "store/base/context.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>

#include "store/base/error.hpp"

namespace weightfs {

std::int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Context Context::within(Clock::duration from_now) const {
  Context result = *this;
  result.deadline = std::min(deadline, Clock::now() + from_now);
  return result;
}

Context Context::once() const {
  Context result = *this;
  result.repeats = false;
  return result;
}

void Context::check(std::string_view what) const {
  if (stop.stop_requested()) {
    throw Error(ErrorCode::cancelled, "stopped while " + std::string(what));
  }
  if (deadline != Clock::time_point::max() && Clock::now() >= deadline) {
    throw Error(ErrorCode::timed_out, "timed out while " + std::string(what));
  }
}

void Context::pause(Clock::duration time, std::string_view what) const {
  std::mutex alone;
  std::unique_lock lock(alone);
  std::condition_variable_any never;
  never.wait_until(lock, stop, std::min(deadline, Clock::now() + time), [] { return false; });
  check(what);
}

}  // namespace weightfs
