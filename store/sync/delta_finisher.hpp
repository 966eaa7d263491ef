// DeltaFinisher: what is left to do of deltas that were made ahead, in a thread, when `latest` has
// moved: those of several steps are written, at once, since somebody is about to open them; what is
// to survive a restart is synced and recorded (store/local/delta_table.hpp).
//
// Threads: all calls may run in parallel, finish_all() one at a time.
#pragma once

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

class DeltaFinisher {
 public:
  /// Keeps the reference.
  explicit DeltaFinisher(Store& store);

  void start() { thread_.start(); }
  /// Waits for a chunk, or a sync, at most.
  void stop() { thread_.stop(); }

  /// A version was made.  Quick.
  void wake() { thread_.wake(); }

  /// What the thread does when it is woken.  Throws Error: no_space, io: of the record.
  void finish_all(const Context& context);

 private:
  Store& store_;
  WokenThread thread_;
};

}  // namespace weightfs
