#include "store/base/ranked_mutex.hpp"

#ifdef WEIGHTFS_CHECK_LOCK_ORDER
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace weightfs::lock_order {
namespace {

struct HeldMutex {
  const void* mutex = nullptr;
  LockRank rank{};
  const char* name = nullptr;
};

// Of this thread, in the order in which they were locked.  Many more than the order has ranks: what
// is locked by std::scoped_lock may be of one rank.
constinit thread_local std::array<HeldMutex, 128> held_mutexes{};
constinit thread_local std::size_t held_count = 0;

int number(LockRank rank) { return static_cast<int>(rank); }

}  // namespace

void check(LockRank rank, const char* name) noexcept {
  for (std::size_t i = 0; i < held_count; ++i) {
    const HeldMutex& held = held_mutexes[i];
    if (held.rank < rank) continue;
    std::fprintf(
        stderr,
        "weightfs: lock order: %s (rank %d) is locked by a thread that holds %s (rank %d): "
        "ranks must rise, see store/base/ranked_mutex.hpp\n",
        name, number(rank), held.name, number(held.rank));
    std::abort();
  }
}

void note(const void* mutex, LockRank rank, const char* name) noexcept {
  if (held_count == held_mutexes.size()) {
    std::fprintf(stderr, "weightfs: lock order: a thread holds %zu mutexes and locks %s\n",
                 held_count, name);
    std::abort();
  }
  held_mutexes[held_count++] = {mutex, rank, name};
}

void forget(const void* mutex) noexcept {
  const auto end = held_mutexes.begin() + static_cast<std::ptrdiff_t>(held_count);
  const auto found = std::find_if(held_mutexes.begin(), end,
                                  [&](const HeldMutex& held) { return held.mutex == mutex; });
  if (found == end) {
    std::fputs("weightfs: lock order: a thread unlocks a mutex that it does not hold\n", stderr);
    std::abort();
  }
  std::move(found + 1, end, found);
  --held_count;
}

}  // namespace weightfs::lock_order
#endif
