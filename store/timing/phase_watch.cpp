#include "store/timing/phase_watch.hpp"

#include <algorithm>

namespace weightfs {

using std::chrono::nanoseconds;

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
  const auto then = std::chrono::system_clock::time_point(std::chrono::seconds(time));
  const auto ago = std::chrono::system_clock::now() - then;
  return HandOverWatch(std::move(name), Clock::now() - std::max(ago, ago.zero()));
}

}  // namespace weightfs
