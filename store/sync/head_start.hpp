// HeadStart: makes files of the next version before its manifest exists, of the packs that its
// writer has uploaded already (store/sync/make_early.hpp), in a thread of its own.
//
//     a poll found nothing new --> look: early/<N+1>.json --> make what is not here yet
//                                    ^------------------------ until there was nothing
//
// It asks for the record only if the publisher of the newest version had coded some of it before
// the hand-over: for all other runs it sends no request.  If so, it asks once after each poll that
// found nothing, and once more after each look that made something.  What fails is left to the
// version, and only logged, at debug level.  While the record says the same, it is tried again only
// after a pause, which doubles: polls may come every few milliseconds.
//
// The record also tells how far the save is, and so when the version may come.
//
// Threads: all calls may run in parallel, look() one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/format/early_record.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/sync/make_early.hpp"
#include "store/sync/save_pace.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

/// Of files that are made before their version is known.
struct HeadStartStatus {
  std::uint64_t waiting_bytes = 0;  // that are here, also such as are begun, in full
  std::uint64_t taken_bytes = 0;    // by versions, since the store was opened
  /// Until HeadStart::due(), negative since then.
  std::optional<std::chrono::milliseconds> due_in = {};
};

class HeadStart {
 public:
  /// Keeps the references.  `due_changed`: due() returns something else now; called by the thread,
  /// must be quick.
  HeadStart(Store& store, History& history, kernels::SharedCoder coder,
            std::function<void()> due_changed = {});

  void start() { thread_.start(); }
  void stop() { thread_.stop(); }

  /// A poll found nothing after the newest version, which is here.  Quick.
  void wake() { thread_.wake(); }

  /// What the thread does when it is woken.  Requires: the thread does not run.
  /// Returns: the bytes of the files that were made; 0 also if the same has failed just now.
  /// Throws Error: what the bucket and make_early() throw.
  std::uint64_t look(const Context& context);

  /// When the next version may come, by the pace of its save; nullopt: nothing tells.
  [[nodiscard]] std::optional<Clock::time_point> due() const;

  [[nodiscard]] HeadStartStatus status() const;

  /// Of packs, by this process.
  [[nodiscard]] std::uint64_t fetched_bytes() const noexcept { return fetched_bytes_; }

 private:
  /// What could not be made.
  struct Failure {
    EarlyRecord record;
    unsigned count = 0;  // in a row
    Clock::time_point until;
  };

  std::optional<EarlyRecord> find_record(const Context& context);
  EarlyMade make(const EarlyRecord& record, const Context& context);
  void note_failure(const EarlyRecord& record);
  void set_due(std::optional<Clock::time_point> due);

  Store& store_;
  History& history_;
  const kernels::SharedCoder coder_;
  const std::function<void()> due_changed_;
  std::atomic<std::uint64_t> fetched_bytes_ = 0;
  SavePace pace_;                   // the thread's, as are the next two
  std::optional<Failure> failure_;  // the last one, if nothing has changed since
  std::minstd_rand random_{std::random_device{}()};
  mutable RankedMutex mutex_{LockRank::leaf, "HeadStart::mutex_"};  // guards the next field
  std::optional<Clock::time_point> due_;
  WokenThread thread_;
};

}  // namespace weightfs
