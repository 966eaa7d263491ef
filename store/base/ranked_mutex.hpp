// RankedMutex: a mutex that knows its place in the lock order, and aborts if a thread violates it.
//
//     mutable RankedMutex mutex_{LockRank::sync, "Sync::mutex_"};
//     std::condition_variable_any changed_;
//     ...
//     std::unique_lock lock(mutex_);
//     changed_.wait(lock, stop, [&] { return is_there_; });
//
// A thread may lock a mutex only while all others that it holds have a lower rank.  As all threads
// keep this one order, they cannot deadlock in a cycle.  A violation is found the first time it
// happens, by any test, without a second thread and without bad luck.
//
// A request to the bucket also waits but is not a mutex: check_lock_order() aborts if one is made
// while a mutex is held that must not be held across it.
//
// Checked in builds with assertions (dev, asan, tsan, fuzz) and those with
// WEIGHTFS_CHECK_LOCK_ORDER.  In all others a RankedMutex is the mutex of the standard library:
// same size, same calls.  All files of a program must agree.
//
// Not checked: try_lock(), which does not wait; so std::scoped_lock may take several of one rank.
// std::condition_variable only accepts std::mutex: use std::condition_variable_any.
//
// Threads: as std::mutex.  Errors: a violation is a bug; the message names both mutexes, and the
// program aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#if !defined(NDEBUG) && !defined(WEIGHTFS_CHECK_LOCK_ORDER)
#define WEIGHTFS_CHECK_LOCK_ORDER
#endif

namespace weightfs {

// The order, from the first rank to the last; never back, never two of one rank.  Four parts, by
// what may be done while a mutex is held:
//
//     the bucket      requests, as slow as the network: one round of a sync, one hook of an engine
//     the database    files and records of this host, never the bucket
//     nothing slow    tables in memory: held briefly; later mutexes of this part may be locked
//     nothing         `leaf`: no other mutex may be locked
//
// To add one: find the last mutex that may be held when it is locked, and the first that is locked
// while it is held; its rank lies between.  If there is none, it is a leaf.
enum class LockRank : std::uint8_t {
  // ---- held across bucket calls ----
  hook_engine,   // a hook's whole round; only threads of hooks take it
  sync_thread,   // starting and joining the thread of a Sync
  queue_thread,  // likewise of a PublishQueue
  sync_round,    // one round at a time
  images,        // ImageTable::lock_images(): one version at a time is brought into the store
  partial_plan,  // another way to a version that is being filled is planned
  repository,    // opening a bucket
  bucket,        // no mutex: a request, for check_lock_order()

  // ---- held across database and file calls ----
  staging_removing,  // unused bytes of staging
  evictor,           // room is made for one at a time
  evict,             // one version at a time leaves the store; asks pins, hooks and catalogs
  sync_directory,    // the directory of `weightfs sync`; asks for the catalog
  bound_work,        // mount(2) and its kin, which wait for the session's threads
  sync_catalog,      // a catalog is made and shown
  catalog_builder,
  partial_stop,  // joining the threads that fill a version
  queue_record,  // records of hand-overs
  queue_early,   // which files were given to early work
  staging_changes,
  history_accept,  // a version is compared with its neighbours
  history_layouts,
  manual_pins_change,
  store_newest,
  store_images,  // records of images
  timings,       // records of how long versions took
  patches,       // patches and their records
  database,      // Db's handle

  // ---- nothing slow under it ----
  sync,
  partial_errors,  // errors are reported in order
  partial_images,
  partial_version,
  pack_spool,
  delta_files,
  queue,
  staging,
  pre_encoder,
  close_watch,
  history,
  store,
  eviction,
  manual_pins,
  bound_sets,
  warmer,
  hooks,
  hook_reconciler,
  first_pass,  // the wait for one
  pins_opens,  // taking what was opened
  passes,
  link_passes,
  latest_lookups,
  session_guard,  // whether there is a session
  control_server,
  read_waker,
  requests,
  open_table,

  // ---- no other mutex under it ----
  leaf,
};

#ifdef WEIGHTFS_CHECK_LOCK_ORDER
inline constexpr bool kChecksLockOrder = true;

namespace lock_order {

/// Aborts if this thread holds a mutex of `rank` or higher; names both.
void check(LockRank rank, const char* name) noexcept;
/// Remembers that this thread holds `mutex`.
void note(const void* mutex, LockRank rank, const char* name) noexcept;
void forget(const void* mutex) noexcept;

}  // namespace lock_order

/// For models that simulate several threads on one: mutexes held earlier do not count while this
/// lives.
class ActsAsAnotherThread {
 public:
  ActsAsAnotherThread() noexcept;
  ~ActsAsAnotherThread();
  ActsAsAnotherThread(const ActsAsAnotherThread&) = delete;
  ActsAsAnotherThread& operator=(const ActsAsAnotherThread&) = delete;

 private:
  std::size_t before_;
};

/// For operations that wait but are not a mutex: aborts if this thread holds a mutex of `rank` or
/// higher.
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

  // A thread that locks shared twice deadlocks with itself if a writer waits in between, so this is
  // checked like lock().
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

class ActsAsAnotherThread {
 public:
  ActsAsAnotherThread() noexcept {}
};

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
