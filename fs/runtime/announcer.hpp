// Announcer: says in the bucket what this mount or sync shows (--announce), for whoever waits for
// its readers: readers/<id>.json (store/readers).
//
// It has a thread of its own: following, readers and engines never wait for it.  A record is
// written at the start, when `latest`, an engine's version or its state has changed or all bytes of
// `latest` have come (at most once a second), and every `every`; each write has a deadline.  A
// failed one is repeated when the next is due; the log has each reason once.  The end writes a last
// record, which says that the reader has left, if the bucket took the one before.
//
// Threads: all calls may run in parallel, except start() and stop(), which are the owner's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fs/hooks/reconciler.hpp"
#include "fs/runtime/daemon_state.hpp"
#include "fs/runtime/host_options.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"
#include "store/readers/reader_record.hpp"
#include "store/repository/repository.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs::fs {

/// What a reader says about itself.  `now`: seconds since 1970.
ReaderRecord reader_record_of(const DaemonState& state, std::int64_t now);

class Announcer {
 public:
  struct Sources {
    std::function<std::uint64_t()> shown;            // the version of `latest`; cheap
    std::function<std::vector<HookStatus>()> hooks;  // cheap
    std::function<DaemonState()> state;              // called by the thread
  };

  /// Keeps the references.
  Announcer(Repository& repository, Db& db, const AnnounceOptions& options, Sources sources);
  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;

  void start();
  /// Ends the thread, and says that the reader has left; takes about 2 s at most.
  void stop();

  /// `latest` may have moved.  Quick.
  void wake() { thread_.wake(); }

  [[nodiscard]] AnnounceState state() const;

 private:
  /// Whose change is worth a record before it is due.
  struct Sight {
    std::uint64_t version = 0;
    std::vector<ReaderEngine> engines;
    bool is_whole = false;  // as the record said
  };

  Clock::duration work(const Context& context);
  Clock::duration look_and_write(const Context& context);
  [[nodiscard]] Sight look() const;
  [[nodiscard]] bool is_new(const Sight& sight) const;
  void write(const Context& context);
  void put(const ReaderRecord& record, const Context& context);
  void note(const std::string& error);

  Repository& repository_;
  Db& db_;
  const AnnounceOptions options_;
  const Sources sources_;
  const std::int64_t since_ = seconds_now();

  // Of the thread, and of stop() after its end:
  std::string id_;                    // empty: not known yet
  std::optional<ReaderRecord> last_;  // that the bucket took
  Sight seen_;
  Clock::time_point due_{}, free_{};  // the next record must be written, may be written

  mutable RankedMutex mutex_{LockRank::leaf, "Announcer::mutex_"};  // guards state_
  AnnounceState state_;
  WokenThread thread_;  // last: stopped first
};

}  // namespace weightfs::fs
