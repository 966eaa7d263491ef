// Background gc: a writer's mount that retires and removes old versions by itself (--gc).
//
// A run is due when the interval has passed and there is a new version, or something whose grace is
// over.  The first one comes after the first new version, or after an interval.  It begins only
// while no hand-over is under way, and waits whenever one is: each request first asks.  It may be
// stopped anywhere, as collect() may.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "fs/runtime/daemon_state.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/repository/repository.hpp"
#include "store/retention/collect.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs::fs {

struct BackgroundGcOptions {
  bool is_on = false;
  CollectOptions collect;  // without `wait_turn`
  std::chrono::seconds interval = std::chrono::hours(6);
};

class BackgroundGc {
 public:
  struct Sources {
    std::function<std::uint64_t()> newest;  // version
    std::function<bool()> is_busy;          // a hand-over is under way; cheap
    SkipWork skips;
  };

  /// Keeps the reference.
  BackgroundGc(Repository& repository, const BackgroundGcOptions& options, Sources sources);

  /// Looks whether a run is due.  Quick; called when anything may have changed, and now and then.
  void wake() { thread_.wake(); }

  [[nodiscard]] GcState state() const;

 private:
  Clock::duration work(const Context& context);
  [[nodiscard]] bool is_due() const;
  void run(const Context& context);
  void remove_old(const Context& context);  // records of readers
  bool gives_way() const;
  void wait_turn(const Context& context) const;
  void note(const CollectReport& report);

  Repository& repository_;
  const BackgroundGcOptions options_;
  const Sources sources_;
  // Of the thread:
  bool has_run_ = false;
  Clock::time_point last_run_ = Clock::now();  // or the begin of this
  std::uint64_t seen_ = 0;                     // the newest version then

  mutable RankedMutex mutex_{LockRank::leaf, "BackgroundGc::mutex_"};  // guards state_
  mutable GcState state_;
  WokenThread thread_;  // last: stopped first
};

}  // namespace weightfs::fs
