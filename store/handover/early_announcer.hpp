// EarlyAnnouncer: tells readers which packs of the next version are in the bucket already, in its
// early record (store/repository/early_records.hpp).
//
// A slow bucket delays neither coding nor uploads: a thread puts the newest state, one request at a
// time, so files that are coded quickly share a request.  Failures are only logged, at debug level,
// and tried again with the next change: nothing depends on the record.
//
// Most services take many puts of one key a second, some only one (R2), and what they refuse slows
// the packs down, which go through the same client.  So each is sent once, and where one is refused
// for now, the puts of that record are 1 s apart from then on, twice as long (up to 30 s) each time
// that it happens again.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "store/base/context.hpp"
#include "store/publish/pre_encoder.hpp"
#include "store/repository/repository.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

class EarlyAnnouncer {
 public:
  /// Keeps the reference.  `state`: called by the thread; must not block.
  EarlyAnnouncer(Repository& repository, std::function<EarlyComing()> state);

  void start() { thread_.start(); }
  /// The record stays: a hand-over may still be published.
  void stop() { thread_.stop(); }

  /// The state may be another one.  Quick.
  void wake() { thread_.wake(); }

 private:
  [[nodiscard]] Clock::duration announce(const Context& context);
  [[nodiscard]] bool put(const EarlyRecord& record, const Context& context);
  void remove_told(const Context& context);

  Repository& repository_;
  const std::function<EarlyComing()> state_;
  std::uint64_t told_ = 0;   // the version of the record that was put; 0: none.  The thread's
  std::string bytes_;        // of that record
  Clock::duration pause_{};  // between two puts of that record
  Clock::time_point not_before_{};  // its next put
  WokenThread thread_;              // last: it uses those above
};

}  // namespace weightfs
