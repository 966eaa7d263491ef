// The inside of PublishQueue: publish_queue.cpp has what callers ask for, publish_queue_thread.cpp
// the thread that publishes.
//
// Locks, in this order; none of them is held over the bucket, and none but thread_mutex over a
// wait:
//
//     thread_mutex    the thread
//     record_mutex    writes of records, so that one that was removed never comes back
//     early_mutex     which files were given to early work; held over calls of staging
//     mutex           what is in memory; held for moments
//
// Withdrawing and committing exclude each other under `mutex`: take_back() and cancel() set
// is_withdrawn unless the phase is committing or committed, and the phase becomes committing
// unless is_withdrawn is set.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "store/base/ranked_mutex.hpp"
#include "store/base/wait_budget.hpp"
#include "store/format/version_images.hpp"
#include "store/handover/handover_record.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/handover/published_range.hpp"
#include "store/handover/seal.hpp"
#include "store/publish/pre_encoder.hpp"
#include "store/publish/publish.hpp"
#include "store/staging/close_watch.hpp"

namespace weightfs {

/// Records of the family `store`: see store/local/column_families.hpp.
inline constexpr std::string_view kOrdersKey = "orders", kOwnKey = "own";

/// A hand-over in memory.  Guarded by State::mutex but for the last block.  The record is changed
/// by the thread only, so the thread reads it without; but for its fence, and for the phase
/// conflict, at which the thread is done with it: those a rebase changes too.
struct QueueItem {
  HandOverRecord record;
  bool is_withdrawn = false;  // being taken back or cancelled, or that is done
  bool is_running = false;    // the thread is at work on it
  bool is_gone = false;       // no longer in State::items
  std::string step;           // of publish()
  std::uint64_t done_bytes = 0, total_bytes = 0;
  std::uint64_t early_bytes = 0;
  std::string error, error_code;  // why it waits
  unsigned failures = 0;          // in a row
  Clock::time_point retry_at{};
  std::stop_source stop;  // of the present try

  // The thread's own.
  bool has_links = false;
  bool is_recorded = false;  // its phase committed is in the store
  unsigned lost_races = 0;
  std::optional<std::uint64_t> tried_parent;  // that the last try was fenced to
  std::optional<VersionImages> images;
  ImagesLock images_lock;
  std::shared_ptr<const PreEncoded> early;
};

struct PublishQueue::State {
  State(Staging& the_staging, Store& the_store, History& the_history, QueueOptions the_options);

  // ---- publish_queue.cpp ----

  [[nodiscard]] EarlyOptions early_options();
  [[nodiscard]] CloseWatchOptions watch_options();
  void load_counters();
  void load_records();
  void take_record(HandOverRecord record);
  [[nodiscard]] std::uint64_t hand_over(StagingId directory, std::string_view name,
                                        std::string_view tag, const HandOverOptions& given,
                                        const Context& context);
  [[nodiscard]] HandOverRecord make_record(StagingId directory, std::string_view name,
                                           std::string_view tag, const HandOverOptions& given);
  void check_free(std::string_view name) const;
  void check_bucket(uid_t user, const Context& context);
  void wait_for_writers(StagingId directory, uid_t user, const Context& context);
  std::uint64_t enqueue(HandOverRecord record);
  std::shared_ptr<QueueItem> begin_withdrawal(StagingId directory);
  void withdraw(StagingId directory,
                const std::function<void(const std::vector<Db::Change>& also)>& body);
  void end_withdrawal(QueueItem& item);
  void note_refusal(std::string_view name, std::string_view why);
  [[nodiscard]] std::vector<std::string> move_fences(std::uint64_t newest);
  [[nodiscard]] std::optional<std::uint64_t> early_parent() const;
  [[nodiscard]] bool may_hand_over(Caller caller) const;
  void look_at(StagingId id);
  void closed(StagingId file);
  [[nodiscard]] std::optional<EarlyFile> find_early_file(StagingId file);
  [[nodiscard]] std::shared_ptr<const Layout> newest_layout();
  void drop_stale_early();
  void drop_early(StagingId directory);

  // ---- publish_queue_thread.cpp ----

  void run(const std::stop_token& stop);
  [[nodiscard]] std::shared_ptr<QueueItem> first() const;  // under `mutex`
  std::shared_ptr<QueueItem> next(const std::stop_token& stop);
  void step(const std::shared_ptr<QueueItem>& item, const std::stop_token& stop);
  void advance(QueueItem& item, const Context& context);
  void look_for_version(QueueItem& item, const Context& context);
  void publish_item(QueueItem& item, const Context& context);
  void set_queued(QueueItem& item);
  void prepare_links(QueueItem& item, const Context& context);
  void take_early(QueueItem& item, const Context& context);
  [[nodiscard]] PublishOptions options_of(QueueItem& item);
  void begin_commit(QueueItem& item, std::uint64_t version);
  void settle(QueueItem& item, const Context& context);
  void bring_images(QueueItem& item, const Context& context);
  void trim_images();
  void finish(QueueItem& item, const Context& context);
  void failed(QueueItem& item, const Error& error);
  [[nodiscard]] bool has_moved(const QueueItem& item) const;
  [[nodiscard]] Error conflict_of(const QueueItem& item) const;
  [[nodiscard]] Error lost_races_of(const QueueItem& item) const;
  void wait(QueueItem& item, const std::string& why, ErrorCode code);
  void end(QueueItem& item, HandOverRecord::Phase phase, const Error& error);

  // ---- both ----

  void write_record(QueueItem& item);
  void note_end(HandOverEnd end);  // under `mutex`
  [[nodiscard]] std::filesystem::path links_root() const { return store.path() / "handover"; }
  [[nodiscard]] std::filesystem::path links_of(const HandOverRecord& record) const {
    return links_root() / record.nonce;
  }
  void reached(std::string_view point) const {
    if (options.at) options.at(point);
  }

  /// Changes what `mutex` guards, and wakes who waits for it.
  template <typename Change>
  void change(Change&& changes) {
    {
      const std::lock_guard lock(mutex);
      changes();
      change_count++;
    }
    changed.notify_all();
  }

  Staging& staging;
  Store& store;
  History& history;
  const QueueOptions options;

  // Guards the next block.
  mutable RankedMutex mutex{LockRank::queue, "PublishQueue::State::mutex"};
  mutable std::condition_variable_any changed;
  std::uint64_t change_count = 0;
  std::map<std::uint64_t, std::shared_ptr<QueueItem>> items;  // by order
  std::deque<HandOverEnd> ended;
  PublishedRange own;
  std::optional<std::uint64_t> seen;  // newest version when the queue was started
  PublishedTotals totals;
  std::string last_error;
  std::string last_refused;  // the name that it is about
  Clock::time_point last_refused_at{};
  std::string bucket_refusal;  // why it may not be written, if that was the last answer

  // Guards what is in the family `handovers`, and:
  RankedMutex record_mutex{LockRank::queue_record, "PublishQueue::State::record_mutex"};
  std::uint64_t next_order = 1;

  /// A file that was given to early work, as it was then.
  struct EarlySource {
    StagingId file = 0;
    std::uint64_t generation = 0;
    timespec changed{};  // its modification time

    friend bool operator==(const EarlySource& a, const EarlySource& b) noexcept {
      return a.file == b.file && a.generation == b.generation &&
             a.changed.tv_sec == b.changed.tv_sec && a.changed.tv_nsec == b.changed.tv_nsec;
    }
  };
  RankedMutex early_mutex{LockRank::queue_early, "PublishQueue::State::early_mutex"};  // guards:
  std::map<std::pair<StagingId, std::string>, EarlySource> early_files;  // by directory and path

  std::minstd_rand random{std::random_device{}()};  // the thread's own, and:
  bool is_proven = false;                           // QueueOptions::prove has returned

  // Guards `thread`.
  RankedMutex thread_mutex{LockRank::queue_thread, "PublishQueue::State::thread_mutex"};
  std::jthread thread;

  WaitBudget waits{kWriterWait};  // of hand-overs, by user

  PreEncoder early;   // its thread calls early_parent()
  CloseWatch closes;  // last: its thread calls closed()
};

}  // namespace weightfs
