// Publish queue: what trainers have handed over, on its way to the bucket.
//
//     hand_over   seals a staged directory, checks it, records it: then it is in publish/
//     one thread  publishes in order; waits while the bucket is unreachable
//     done        the staged files are the images of the new version; whatever was not published is
//                 back in staging
//
// A record (family `handovers`) is synced before the first upload. Its nonce and phase tell a new
// process how to continue, so no version is published twice or lost:
//
//     queued       nothing of it can be a version
//     committing   its manifest may be in the bucket, and is searched for by its nonce
//     committed    it is version N; the images and the staged files are not settled yet
//     conflict     another writer published since its fence; stays until it is taken back or
//                  removed
//     failed       it cannot be published; likewise
//
// Fence: a hand-over may only follow the newest version that this mount saw when it began, or an
// unbroken run of versions that this queue has published since; with `rebase` it follows any.
// rebase() moves the fence manually: the mount then counts as having seen the newest version.
//
// A rollback (VersionWishes::rollback) is a hand-over of an empty directory, which only has its
// place in publish/, and with it order, fence, record and nonce: it is published with the content
// of an older version.  Nothing is adopted: its images are made like those of any version.
//
// Parts (QueueOptions::part): each hand-over is a part of a version that several hosts publish
// (store/publish/publish_part.hpp), and waits for the others in its turn.  It is committing from
// the moment that its part may be in the bucket, since whoever finds all parts commits.  It ends
// when the version exists, whoever committed it; nothing is adopted then, for the version's other
// files are not here.  There is no early work.
//
// Permissions: every file must belong to the caller, unless that is root.  Early work is done only
// on files of users who may hand over, that is, who may write to the publish root, and of root.
//
// Threads: all calls may run in parallel.  Lock order: docs/architecture/threads.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/handover/handover_status.hpp"
#include "store/materialize/history.hpp"
#include "store/parts/part_set.hpp"
#include "store/publish/pre_encoder.hpp"
#include "store/publish/publish_options.hpp"
#include "store/publish/snapshot_choice.hpp"
#include "store/publish/version_wishes.hpp"
#include "store/staging/staging.hpp"

namespace weightfs {

struct HandOverOptions {
  Caller caller = {};         // the calling user; default: root
  VersionWishes wishes = {};  // `include` in addition to that of the queue, `rebase` or that of it
};

struct QueueOptions {
  bool rebase = false;
  std::vector<std::string> include;
  SnapshotPolicy snapshots = {};
  PartChoice part = {};  // of what is handed over; earlier hand-overs keep that of their record
  std::chrono::milliseconds part_wait = kPartWait;  // more than 0
  unsigned threads = 0;
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  std::chrono::milliseconds name_patience = kNamePatience;  // of early work
  /// Called when the images of the version are complete, so that the mount can show it.
  std::function<void(std::uint64_t version)> show;
  /// Describes who holds files of a staged directory open for writing: "pid 123 (python3)"; "" if
  /// no visible process does.
  std::function<std::string(const std::vector<StagedFile>& files)> holders;
  /// The command that a user should run after a conflict, for its message: see
  /// PublishQueue::rebase().
  std::string rebase_command = "weightfs rebase MOUNTPOINT";
  /// Called before every publish until it succeeds once: throws Error if the bucket is not suitable
  /// for publishing.
  std::function<void(const Context&)> prove = {};
  /// Called at named points, where tests kill the process: those of publish() or publish_part(),
  /// "sealed", "recorded" (handed over), "committing", "committed-recorded", "adopted", "shown",
  /// "finished".
  std::function<void(std::string_view point)> at;
};

class PublishQueue {
 public:
  /// Loads the records.  Keeps the references.  Links are made again where needed.
  /// Throws Error: unsupported (the file system of the store has no leases), permission (the
  /// kernel grants them only to the owner of the store), corrupt, io.
  PublishQueue(Staging& staging, Store& store, History& history, QueueOptions options);
  ~PublishQueue();  // stops and joins; queued hand-overs remain for the next process

  /// Begins to publish.  `newest`: the newest version known now, which is the fence.
  void start(std::uint64_t newest);
  void stop();

  /// A staged file, or the files of a staged directory, may be complete: the last writer closed it,
  /// it was renamed, or its times were set.  Early work begins once no process can write to it
  /// (store/staging/close_watch.hpp).  Returns at once.
  void look_at(StagingId id) noexcept;

  /// Images of the newest version may have arrived in the store: early work waits for them.
  /// Returns at once, also while locks of a Sync are held.
  void parent_arrived();

  /// Whether the permissions of the publish root let this user write there.  Supplementary groups
  /// are not known here.
  [[nodiscard]] bool may_hand_over(Caller caller) const;

  /// Hands `directory` of staging over as publish/`name`.  May take some seconds if there is still
  /// a writer.  After a failure nothing has changed, and last_error()
  /// names the reason.
  /// Returns: its order.
  /// Throws Error: invalid (name, tag, not a directory, links or special files in it), corrupt
  /// (header, index), not_found (missing shard; no version to roll back to), busy (still being
  /// written: names files and holders; or the name is already queued), permission (a file of
  /// another user; the bucket is not writable), no_space, cancelled, io.
  std::uint64_t hand_over(StagingId directory, std::string_view name,
                          const HandOverOptions& options, const Context& context);

  /// For a rename from staging into the directory publish/`name`, which mv tries where that name is
  /// taken.  Throws Error: busy, for the same reason as hand_over() under that name, which
  /// last_error() then tells.
  void check_free(std::string_view name);

  /// Moves publish/`name` back into staging; it will not become a version.
  /// Throws Error: busy if its manifest may have been sent or it already is a version; PosixError
  /// as rename(2).
  void take_back(StagingId directory, StagingId new_parent, std::string_view new_name);

  /// Cancels the publish; its files may then be unlinked.  Throws Error: busy as above.
  void cancel(StagingId directory);

  /// Finds the newest version: hand-overs that have no version yet, and later ones, may follow it.
  /// Those in conflict are retried.
  /// Throws Error: unavailable, timed_out, corrupt (see History::refresh), no_space, cancelled, io;
  /// then nothing has changed.
  struct Rebased {
    std::uint64_t newest = 0;
    std::vector<std::string> retried;  // names in publish/
  };
  Rebased rebase(const Context& context);

  [[nodiscard]] std::vector<HandOver> list() const;  // in order
  [[nodiscard]] std::vector<HandOverEnd> ended() const;
  [[nodiscard]] PublishedTotals published() const;

  /// Early work on files that are not handed over yet.
  [[nodiscard]] EarlyStatus early() const;

  /// Why the last hand_over() or take_back() was refused, with time and name, without an errno; ""
  /// if none was.
  [[nodiscard]] std::string last_error() const;

  /// Called when a process tries to create a file or directory in publish/, as cp does:
  /// last_error() then says what to do instead.  For some seconds after `name` was refused, that
  /// reason is kept: shutil.move falls back to copying.
  void note_copy(std::string_view name);

  /// Called when a process tries to rename something of publish/`name`, other than to take it back
  /// as a whole: last_error() then says what to do instead.
  void note_rename(std::string_view name);

  /// Waits until something about the queue may have changed, or `until`; also returns now and then,
  /// so that a change just before the call is not missed for long.
  void wait_change(Clock::time_point until, const std::stop_token& stop) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The names in publish/ recorded in a store, for a mount that does not publish.
std::vector<std::string> queued_names(Db& db);

}  // namespace weightfs
