#include "store/context.hpp"

#include <algorithm>
#include <string>

#include "store/error.hpp"

namespace weightfs {

Context Context::within(Clock::duration from_now) const {
  Context result = *this;
  result.deadline = std::min(deadline, Clock::now() + from_now);
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

}  // namespace weightfs
