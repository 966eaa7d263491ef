// HeadStart: makes files of the next version before its manifest exists, of the packs that its
// writer has uploaded already (store/materialize/early_version.hpp), in a thread of its own.
//
//     a poll found nothing new --> look: early/<N+1>.json --> make what is not here yet
//
// It asks for the record only if the publisher of the newest version had coded some of it before
// the hand-over: for all other runs it sends no request.  If so, it asks once after each poll that
// found nothing.  What fails is left to the version, and only logged, at debug level.
//
// Threads: all calls may run in parallel, look() one at a time.
#pragma once

#include <cstdint>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

class HeadStart {
 public:
  /// Keeps the references.
  HeadStart(Store& store, History& history, kernels::SharedCoder coder);

  void start() { thread_.start(); }
  void stop() { thread_.stop(); }

  /// A poll found nothing after the newest version, which is here.  Quick.
  void wake() { thread_.wake(); }

  /// What the thread does when it is woken.  Requires: the thread does not run.
  /// Returns: the bytes of the files that were made.
  /// Throws Error: what the bucket and make_early() throw.
  std::uint64_t look(const Context& context);

 private:
  Store& store_;
  History& history_;
  const kernels::SharedCoder coder_;
  WokenThread thread_;
};

}  // namespace weightfs
