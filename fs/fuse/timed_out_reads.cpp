#include "fs/fuse/timed_out_reads.hpp"

#include <algorithm>
#include <new>

namespace weightfs::fs {

void TimedOutReads::add(const ReadRange& read, Clock::time_point now) noexcept {
  const std::lock_guard lock(mutex_);
  forget(now);
  try {
    late_.push_back({read, now + kMoment});
  } catch (const std::bad_alloc&) {
    // Its repetition waits once more.
  }
}

bool TimedOutReads::covers(const ReadRange& read, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  forget(now);
  return std::any_of(late_.begin(), late_.end(), [&](const Late& one) {
    return one.read.inode == read.inode && one.read.begin_bytes <= read.begin_bytes &&
           one.read.end_bytes >= read.end_bytes;
  });
}

void TimedOutReads::forget(Clock::time_point now) {
  while (!late_.empty() && (late_.front().until <= now || late_.size() >= kReadsMax)) {
    late_.pop_front();
  }
}

}  // namespace weightfs::fs
