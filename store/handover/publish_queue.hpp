// Publish queue: what trainers have handed over, on its way to the bucket.
//
//     hand_over   seals a staged directory, checks it, records it: it lies in publish/ then
//     one thread  publishes in order; waits out a bucket that is out of reach
//     done        the staged files are the images of the new version; what was not published is
//                 back in staging
//
// A record (family `handovers`) is synced before the first upload, and says with its nonce and
// phase how a new process goes on, so no version is published twice or lost:
//
//     queued       nothing of it can be a version
//     committing   its manifest may be in the bucket: it is looked for, by its nonce
//     committed    it is version N; the images and the staged files are not settled yet
//     conflict     another writer published since its fence; stays until it is taken back or
//                  removed
//     failed       it cannot be published; likewise
//
// Fence: a hand-over may only follow the newest version that this mount saw when it began, or an
// unbroken run of versions that this queue has published since; with `rebase` it follows any.
// rebase() moves the fence, by hand: from then on the mount has seen what is newest at that time.
//
// Who hands over: every file must be its caller's own, unless that is root.  Early work is done on
// files of those only who may hand over: who may write into the publish root, and root.
//
// Threads: all calls may run in parallel.  Lock order: docs/architecture/threads.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/materialize/history.hpp"
#include "store/publish/pre_encoder.hpp"
#include "store/staging/staging.hpp"

namespace weightfs {

struct HandOverOptions {
  Caller caller = {};  // who hands over; root by itself
  std::map<std::string, std::string> meta;
  std::vector<std::string> include;  // beside those of the queue
  bool snapshot = false;
  bool rebase = false;  // or the queue's
};

/// A hand-over, as status and publish/ tell it.
struct HandOver {
  enum class State { queued, uploading, waiting, committing, conflict, failed };
  std::uint64_t order = 0;  // ascending; never given out twice
  StagingId directory = 0;
  std::string name;  // in publish/
  std::string tag;   // "" for none
  State state = State::queued;
  std::string phase;  // of uploading: "coding", "uploading" ...
  std::uint64_t done_bytes = 0, total_bytes = 0;
  std::uint64_t early_bytes = 0;  // once it is published from: of files that were coded before
  std::string error;              // of waiting: for what; of conflict and failed: why
  std::string error_code;
  std::int64_t time = 0;      // handed over, seconds since 1970
  std::uint64_t version = 0;  // of committing: the number it is to get
};
std::string_view to_string(HandOver::State state) noexcept;

/// How a hand-over ended; kept for those who wait, in memory, for the last kEndedMax.  One that
/// ended as conflict or failed is still in list(), and ends once more when it is taken back.
struct HandOverEnd {
  enum class How { published, conflict, failed, taken_back };
  std::uint64_t order = 0;
  std::string name, tag;
  How how{};
  std::uint64_t version = 0;  // published
  std::string error;
  std::string
      left;  // published: where the unpublished rest is, below staging/; "" if there is none
  std::uint64_t bytes = 0, early_bytes = 0;  // published: of its files; of those coded early
};
inline constexpr std::size_t kEndedMax = 1024;

/// What a queue has published since it was made, and how much of it was coded before it was handed
/// over.
struct PublishedTotals {
  std::uint64_t versions = 0, bytes = 0, early_bytes = 0;
};

struct QueueOptions {
  bool rebase = false;
  std::vector<std::string> include;
  unsigned threads = 0;
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// The images of the version are complete: the mount can show it.
  std::function<void(std::uint64_t version)> show;
  /// Says who holds files of a staged directory open for writing: "pid 123 (python3)"; "" if nobody
  /// visible does.
  std::function<std::string(const std::vector<StagedFile>& files)> holders;
  /// What a person runs after a conflict, for its message: see PublishQueue::rebase().
  std::string rebase_command = "weightfs rebase MOUNTPOINT";
  /// Called before every publish, until it returns once: throws Error if the bucket is none to
  /// publish into.
  std::function<void(const Context&)> prove = {};
  /// Called at named points; tests kill the process there.  As publish()'s, and "sealed",
  /// "recorded" (handed over), "committing", "committed-recorded", "adopted", "shown", "finished".
  std::function<void(std::string_view point)> at;
};

class PublishQueue {
 public:
  /// Loads the records.  Keeps the references.  What needs links gets them again.
  PublishQueue(Staging& staging, Store& store, History& history, QueueOptions options);
  ~PublishQueue();  // stops and joins; what is queued stays for the next one

  /// `newest`: the newest version that is known now: the fence.  Begins to publish.
  void start(std::uint64_t newest);
  void stop();

  /// A staged file, or what is in a staged directory, may be complete: its last writer closed it,
  /// it was renamed, or its times were set.  Early work begins when nobody can write to it
  /// (store/staging/close_watch.hpp).  Returns at once.
  void look_at(StagingId id) noexcept;

  /// Whether the permissions of the publish root let this user write there.  Its other groups are
  /// not known here.
  [[nodiscard]] bool may_hand_over(Caller caller) const;

  /// Hands `directory` of staging over as publish/`name`, with the tag `tag`.  Takes up to some
  /// seconds while a writer is still there.  After a failure everything is as it was, and
  /// last_error() says why.
  /// Returns: its order.
  /// Throws Error: invalid (name, tag, no directory, links or special files in it), corrupt
  /// (header, index), not_found (missing shard), busy (still written: names files and holders; the
  /// name is queued already), permission (a file of somebody else; the bucket may not be written),
  /// no_space, cancelled, io.
  std::uint64_t hand_over(StagingId directory, std::string_view name, std::string_view tag,
                          const HandOverOptions& options, const Context& context);

  /// publish/`name` goes back into staging; nothing of it becomes a version any more.
  /// Throws Error: busy if its manifest may be on its way or it is a version already; PosixError as
  /// rename(2).
  void take_back(StagingId directory, StagingId new_parent, std::string_view new_name);

  /// It will not be published; its files may be unlinked.  Throws Error: busy as above.
  void cancel(StagingId directory);

  /// Looks which version is newest: what is handed over and has no version yet, and what comes, may
  /// follow that one.  What is in conflict is tried again.
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

  /// What was coded of files that are not handed over yet.
  [[nodiscard]] EarlyStatus early() const;

  /// Why the last hand_over() or take_back() was refused, with the time, name and errno-free words;
  /// "" if none was.
  [[nodiscard]] std::string last_error() const;

  /// Somebody tried to make a file or directory in publish/, as cp does: last_error() says what to
  /// do instead.  But for some seconds it keeps why `name` was refused: shutil.move copies then.
  void note_copy(std::string_view name);

  /// Waits until something about the queue may have changed, or `until`; returns early now and
  /// then, so that nothing that changed before the call is missed for long.
  void wait_change(Clock::time_point until, const std::stop_token& stop) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a store holds of hand-overs, for a mount that is no writer's: names in publish/.
std::vector<std::string> queued_names(Db& db);

}  // namespace weightfs
