// RankedMutex: a mutex that knows its place in the lock order, and aborts where a thread breaks it.
//
//     mutable RankedMutex mutex_{LockRank::catalog, "Sync::mutex_"};
//     std::condition_variable_any changed_;
//     ...
//     std::unique_lock lock(mutex_);
//     changed_.wait(lock, stop, [&] { return is_there_; });
//
// A thread may lock a mutex only while all others that it holds have a lower rank.  As every thread
// keeps that one order, none can wait for another in a circle.  A breach is found the first time it
// happens, by any test, without a second thread and without bad luck.  The order is in
// lock_order.hpp.
//
// What waits but is no mutex has a rank, too: a request to the bucket, a write of the database.
// check_lock_order() aborts if a mutex is held that must not be held over it.
//
// Checked are builds with assertions (dev, asan, tsan, fuzz) and those with
// WEIGHTFS_CHECK_LOCK_ORDER.  In all others a RankedMutex is the mutex of the standard library:
// same size, same calls.  All files of a program must agree.
//
// Not checked: try_lock(), which does not wait; so std::scoped_lock may take several of one rank.
// std::condition_variable takes std::mutex alone: use std::condition_variable_any.
//
// Threads: as std::mutex.  Errors: a breach is a programmer's error; it names both and aborts.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "store/base/lock_order.hpp"

#if !defined(NDEBUG) && !defined(WEIGHTFS_CHECK_LOCK_ORDER)
#define WEIGHTFS_CHECK_LOCK_ORDER
#endif

namespace weightfs {

#ifdef WEIGHTFS_CHECK_LOCK_ORDER
inline constexpr bool kChecksLockOrder = true;

namespace lock_order {

/// Aborts if this thread holds anything of `rank` or of a higher one; names both.
void check(LockRank rank, const char* name) noexcept;
/// Remembers that this thread holds `mutex`.
void note(const void* mutex, LockRank rank, const char* name) noexcept;
void forget(const void* mutex) noexcept;

}  // namespace lock_order

/// For what waits but is no mutex: aborts if this thread holds a mutex of `rank` or of a higher
/// one.
inline void check_lock_order(LockRank rank, const char* name) noexcept {
  lock_order::check(rank, name);
}

/// `Mutex`: one of the standard library.  Its calls are as those of the same name there;
/// std::lock_guard, std::unique_lock, std::shared_lock, std::scoped_lock and
/// std::condition_variable_any take it.
template <typename Mutex>
class Ranked {
 public:
  /// `name`: of the member, as `Sync::mutex_`; must live as long as this does.
  constexpr Ranked(LockRank rank, const char* name) noexcept : rank_(rank), name_(name) {}
  Ranked(const Ranked&) = delete;
  Ranked& operator=(const Ranked&) = delete;

  void lock() {
    lock_order::check(rank_, name_);
    mutex_.lock();
    note();
  }
  bool try_lock() { return noted(mutex_.try_lock()); }
  template <typename Duration>
  bool try_lock_for(const Duration& limit) {
    lock_order::check(rank_, name_);
    return noted(mutex_.try_lock_for(limit));
  }
  void unlock() {
    lock_order::forget(this);
    mutex_.unlock();
  }

  // A thread that reads twice waits for itself where a writer waits in between: checked alike.
  void lock_shared() {
    lock_order::check(rank_, name_);
    mutex_.lock_shared();
    note();
  }
  bool try_lock_shared() { return noted(mutex_.try_lock_shared()); }
  void unlock_shared() {
    lock_order::forget(this);
    mutex_.unlock_shared();
  }

 private:
  void note() noexcept { lock_order::note(this, rank_, name_); }
  bool noted(bool is_locked) noexcept {
    if (is_locked) note();
    return is_locked;
  }

  Mutex mutex_;
  LockRank rank_;
  const char* name_;
};
#else
inline constexpr bool kChecksLockOrder = false;

inline void check_lock_order(LockRank, const char*) noexcept {}

template <typename Mutex>
class Ranked : public Mutex {
 public:
  constexpr Ranked(LockRank, const char*) noexcept {}
};
#endif

using RankedMutex = Ranked<std::mutex>;
using RankedTimedMutex = Ranked<std::timed_mutex>;
using RankedSharedMutex = Ranked<std::shared_mutex>;

}  // namespace weightfs
