#include "store/timing/build_meter.hpp"

#include <algorithm>

namespace weightfs {

using std::chrono::nanoseconds;

void BuildMeter::add_fetch(Clock::time_point begin, std::uint64_t bytes) noexcept {
  const Clock::rep from = begin.time_since_epoch().count();
  const Clock::rep to = Clock::now().time_since_epoch().count();
  Clock::rep first = first_.load();
  while (from < first && !first_.compare_exchange_weak(first, from)) {
  }
  Clock::rep last = last_.load();
  while (to > last && !last_.compare_exchange_weak(last, to)) {
  }
  fetched_bytes_ += bytes;
  requests_++;
}

void BuildMeter::add_stalled(Clock::duration time) noexcept { stalled_ += time.count(); }

void BuildMeter::add_made(Clock::duration time) noexcept { made_ += time.count(); }

void BuildMeter::add_patched(Clock::duration time, std::uint64_t bytes) noexcept {
  patching_ += time.count();
  patched_bytes_ += bytes;
}

void BuildMeter::add_written(Clock::duration time, std::uint64_t bytes) noexcept {
  writing_ += time.count();
  written_bytes_ += bytes;
}

BuildTiming BuildMeter::read() const noexcept {
  const auto time = [](Clock::rep ticks) {
    return std::chrono::duration_cast<nanoseconds>(Clock::duration(std::max<Clock::rep>(ticks, 0)));
  };
  BuildTiming timing;
  if (requests_ > 0) timing.fetch = time(last_ - first_);
  timing.fetched_bytes = fetched_bytes_;
  timing.requests = requests_;
  timing.seeded_bytes = seeded_bytes_;
  timing.stalled = time(stalled_);
  timing.decode = time(made_ - stalled_);
  timing.patch = time(patching_);
  timing.patched_bytes = patched_bytes_;
  timing.write = time(writing_);
  timing.written_bytes = written_bytes_;
  return timing;
}

}  // namespace weightfs
