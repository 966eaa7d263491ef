#include "store/timing/phase_watch.hpp"

#include <algorithm>

namespace weightfs {

using std::chrono::nanoseconds;

namespace {

/// Longer ago means that the clock has been set since: a host may begin at 1970.  The bucket may
/// well have been away for days.
constexpr std::chrono::seconds kLongestAgo = std::chrono::days(30);

}  // namespace

std::int64_t wall_ns(Clock::time_point time) {
  const auto ago = Clock::now() - time;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<nanoseconds>(now - ago).count();
}

VersionWatch::VersionWatch(std::uint64_t version, Clock::time_point seen) : PhaseWatch(seen) {
  timing.version = version;
  timing.seen_ns = wall_ns(seen);
}

HandOverWatch::HandOverWatch(std::string name, Clock::time_point begin) : PhaseWatch(begin) {
  timing.name = std::move(name);
  timing.begun_ns = wall_ns(begin);
}

HandOverWatch HandOverWatch::since(std::string name, std::int64_t time) {
  const std::chrono::seconds ago(seconds_now() - std::max<std::int64_t>(time, 0));
  return HandOverWatch(std::move(name),
                       Clock::now() - std::clamp(ago, std::chrono::seconds(0), kLongestAgo));
}

}  // namespace weightfs
