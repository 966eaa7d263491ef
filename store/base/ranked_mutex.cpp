#include "store/base/ranked_mutex.hpp"

#ifdef WEIGHTFS_CHECK_LOCK_ORDER
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>

#include "store/base/log.hpp"

namespace weightfs::lock_order {
namespace {

struct HeldMutex {
  const void* mutex = nullptr;
  LockRank rank{};
  const char* name = nullptr;
};

// The mutexes of this thread, in locking order.  Many more than there are ranks, because
// std::scoped_lock may lock several of one rank.
constinit thread_local std::array<HeldMutex, 128> held_mutexes{};
constinit thread_local std::size_t held_count = 0;
constinit thread_local std::size_t first_that_counts = 0;  // see ActsAsAnotherThread

int number(LockRank rank) { return static_cast<int>(rank); }

// Uses the log, because a daemon's stderr is lost.
[[noreturn]] void fail(const std::string& what) {
  log_error("lock order: " + what);
  std::abort();
}

}  // namespace

void check(LockRank rank, const char* name) noexcept {
  for (std::size_t i = first_that_counts; i < held_count; ++i) {
    const HeldMutex& held = held_mutexes[i];
    if (held.rank < rank) continue;
    fail(fmt::format(
        "{} (rank {}) is locked by a thread that holds {} (rank {}): ranks must rise, see "
        "store/base/ranked_mutex.hpp",
        name, number(rank), held.name, number(held.rank)));
  }
}

void note(const void* mutex, LockRank rank, const char* name) noexcept {
  if (held_count == held_mutexes.size()) {
    fail(fmt::format("a thread holds {} mutexes and locks {}", held_count, name));
  }
  held_mutexes[held_count++] = {mutex, rank, name};
}

void forget(const void* mutex) noexcept {
  const auto end = held_mutexes.begin() + static_cast<std::ptrdiff_t>(held_count);
  const auto found = std::find_if(held_mutexes.begin(), end,
                                  [&](const HeldMutex& held) { return held.mutex == mutex; });
  if (found == end) fail("a thread unlocks a mutex that it does not hold");
  std::move(found + 1, end, found);
  --held_count;
}

}  // namespace weightfs::lock_order

namespace weightfs {

ActsAsAnotherThread::ActsAsAnotherThread() noexcept
    : before_(std::exchange(lock_order::first_that_counts, lock_order::held_count)) {}

ActsAsAnotherThread::~ActsAsAnotherThread() { lock_order::first_that_counts = before_; }

}  // namespace weightfs
#endif
