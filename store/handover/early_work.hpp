// Early work: finds staged files, and has them coded before their hand-over, while they are written
// or when they are complete.
//
//     look_at           a writer opened or closed a file, or something else says that it may be
//                       complete
//     CloseWatch        says that it is written, and waits until no process can write to it
//     PreEncoder        codes and uploads it against the version that the next hand-over may follow
//     EarlyAnnouncer    tells readers which packs there are, so that they begin too
//     take              the results, when the directory is handed over
//
// Which directory will be handed over is a guess.  Nothing here has to succeed.
//
// Only files of users who may hand over (store/handover/seal.hpp) are looked at, and of root.
//
// Threads: all calls may run in parallel; all but take() return at once.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/format/layout.hpp"
#include "store/handover/early_announcer.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/publish/pre_encoded.hpp"
#include "store/publish/pre_encoder.hpp"
#include "store/staging/close_watch.hpp"
#include "store/staging/staging.hpp"

namespace weightfs {

class EarlyWork {
 public:
  /// Keeps the references.  `options.parent`: called by a thread of this; must not block.
  /// Not `is_on`: no file is looked at.
  EarlyWork(Staging& staging, Store& store, History& history, EarlyOptions options, bool is_on);
  ~EarlyWork();
  EarlyWork(const EarlyWork&) = delete;
  EarlyWork& operator=(const EarlyWork&) = delete;

  /// A staged file, or the files of a staged directory, may be written, or complete.
  void look_at(StagingId id) noexcept;
  void look_at_all() noexcept;

  /// EarlyOptions::parent may return something else now.
  void parent_changed();

  /// Ends the early work for a directory that is handed over.
  /// Returns: what is still true of its files; never null.
  /// Throws Error: cancelled, timed_out; PosixError.
  std::shared_ptr<const PreEncoded> take(StagingId directory, const Context& context);

  /// Forgets the files of a directory.
  void drop(StagingId directory);

  [[nodiscard]] EarlyStatus status() const;

 private:
  /// A file that was given to the coder, and its state then.
  struct Source {
    StagingId file = 0;
    bool is_written = false;  // still, or it has no name yet: then the last two are not known
    bool is_left = false;     // nobody writes, and it has no name yet
    std::uint64_t generation = 0;
    timespec changed{};  // its modification time

    friend bool operator==(const Source& a, const Source& b) noexcept {
      return a.file == b.file && a.is_written == b.is_written && a.is_left == b.is_left &&
             a.generation == b.generation && a.changed.tv_sec == b.changed.tv_sec &&
             a.changed.tv_nsec == b.changed.tv_nsec;
    }
  };

  [[nodiscard]] CloseWatchOptions watch_options();
  [[nodiscard]] EarlyOptions announced(EarlyOptions options);
  void note(StagingId id);
  void look(StagingId file, bool is_written) noexcept;
  void add(StagingId file, bool is_written);
  void leave(StagingId file);
  [[nodiscard]] std::optional<EarlyFile> find_file(StagingId file, bool is_written);
  [[nodiscard]] std::shared_ptr<const Layout> newest_layout();
  void drop_stale();

  Staging& staging_;
  Store& store_;
  History& history_;

  // Guards the next member; held across calls of staging_ and coder_.
  RankedMutex mutex_{LockRank::queue_early, "EarlyWork::mutex_"};
  std::map<std::pair<StagingId, std::string>, Source> sources_;  // by directory and path in it

  EarlyAnnouncer announcer_;  // uses the next one while it runs, which wakes it at any time
  PreEncoder coder_;
  std::optional<CloseWatch> closes_;  // last: its thread calls closed().  nullopt: off
};

}  // namespace weightfs
