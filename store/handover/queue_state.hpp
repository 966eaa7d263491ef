// The implementation of PublishQueue: publish_queue.cpp has the public calls, queue_hand_over.cpp
// the checks of a hand-over, queue_thread.cpp the thread that publishes, queue_part.cpp what it
// does with a part.
//
// Locks, in this order; none of them is held across bucket calls, and only thread_mutex across a
// wait:
//
//     thread_mutex    the thread
//     record_mutex    writes of records, so that a removed record never comes back
//     mutex           what is in memory; held only briefly
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
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/format/checkpoint.hpp"
#include "store/handover/early_work.hpp"
#include "store/handover/handover_record.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/handover/published_range.hpp"
#include "store/handover/queue_item.hpp"
#include "store/handover/seal.hpp"
#include "store/publish/publish.hpp"
#include "store/threads/wait_budget.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs {

/// Records of the family `store`: see store/database/column_families.hpp.
inline constexpr std::string_view kOrdersKey = "orders", kOwnKey = "own";

/// The name at the end of a path in staging/ or publish/.
inline std::string_view last_component(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

/// A hand-over ends with this error, whatever its code says of others.
class FinalError : public Error {
 public:
  explicit FinalError(const Error& error) : Error(error) {}
};

/// Temporary: nothing is wrong with the checkpoint or the repository.
bool may_pass(ErrorCode code) noexcept;

struct PublishQueue::State {
  State(Staging& the_staging, Store& the_store, History& the_history, QueueOptions the_options);

  // ---- publish_queue.cpp ----

  [[nodiscard]] EarlyOptions early_options();
  void load_counters();
  void load_records();
  void write_loaded(std::string key, std::optional<std::string> value);
  void take_record(HandOverRecord record);
  std::shared_ptr<QueueItem> begin_withdrawal(StagingId directory);
  void withdraw(StagingId directory,
                const std::function<void(const std::vector<Db::Change>& also)>& body);
  void end_withdrawal(QueueItem& item);
  void note_refusal(std::string_view name, std::string_view why);
  [[nodiscard]] std::vector<std::string> move_fences(std::uint64_t newest);
  [[nodiscard]] std::optional<std::uint64_t> early_parent() const;
  [[nodiscard]] bool is_in_conflict() const;
  [[nodiscard]] bool is_handed_over(StagingId directory) const;

  // ---- queue_hand_over.cpp ----

  [[nodiscard]] std::uint64_t hand_over(StagingId directory, std::string_view name,
                                        const HandOverOptions& given, const Context& context);
  [[nodiscard]] HandOverRecord make_record(StagingId directory, std::string_view name,
                                           const HandOverOptions& given);
  void check_part(const VersionWishes& wishes) const;
  void require_not_lost(StagingId directory, const std::string& shown) const;
  void check_free(std::string_view name);
  void require_free(std::string_view name) const;  // under `record_mutex`
  void check_bucket(uid_t user, const Context& context);
  void wait_for_writers(StagingId directory, uid_t user, const Context& context);
  std::uint64_t enqueue(HandOverRecord record, HandOverWatch watch);

  // ---- queue_thread.cpp ----

  void run(const std::stop_token& stop);
  [[nodiscard]] std::shared_ptr<QueueItem> first() const;  // under `mutex`
  std::shared_ptr<QueueItem> next(const std::stop_token& stop);
  void step(const std::shared_ptr<QueueItem>& item, const std::stop_token& stop);
  void end_step(QueueItem& item);
  void advance(QueueItem& item, const Context& context);
  void look_for_version(QueueItem& item, const Context& context);
  void publish_item(QueueItem& item, const Context& context);
  void note_committed(QueueItem& item, std::uint64_t version);
  void set_queued(QueueItem& item);
  [[nodiscard]] Error lost_bytes_of(const HandOverRecord& record) const;
  bool look_for_lost_first(const QueueItem& item);
  void note_lost(QueueItem& item, const std::function<void()>& check);
  void require_no_mark(const HandOverRecord& record) const;
  void prepare_links(QueueItem& item, const Context& context);
  void sync_staged(QueueItem& item, const Context& context);
  void sync_waiting(QueueItem& failed, const Context& context);
  [[nodiscard]] std::optional<Error> sync_if_possible(QueueItem& item, const Context& context);
  void remove_if_gone(const QueueItem& item) const;
  std::shared_ptr<const PreEncoded> take_early(QueueItem& item, const Context& context);
  /// What may be a version already cannot be taken back, so it is not refused for shards that are
  /// missing: a release that did not look for them may have handed it over.
  [[nodiscard]] static ScanScope scope_of(const HandOverRecord& record) {
    const bool may_lack_shards =
        record.part.is_part() || record.phase == HandOverRecord::Phase::committing;
    return may_lack_shards ? ScanScope::part : ScanScope::whole;
  }
  [[nodiscard]] PublishOptions options_of(QueueItem& item);
  void begin_commit(QueueItem& item, std::uint64_t version);
  void settle(QueueItem& item, const Context& context);
  void bring_images(QueueItem& item, const Context& context);
  void trim_images();
  void finish(QueueItem& item, const Context& context);
  void failed(QueueItem& item, const Error& error, bool is_final);
  [[nodiscard]] bool has_moved(const QueueItem& item) const;
  [[nodiscard]] Error conflict_of(const QueueItem& item) const;
  [[nodiscard]] Error lost_races_of(const QueueItem& item) const;
  void wait(QueueItem& item, const std::string& why, ErrorCode code);
  void end_in_conflict(QueueItem& item, const Error& why);
  void end(QueueItem& item, HandOverRecord::Phase phase, const Error& error);

  // ---- queue_part.cpp ----

  void publish_part_item(QueueItem& item, const Context& context, const Progress& progress);
  [[nodiscard]] std::optional<std::set<std::string>> own_paths(QueueItem& item) const;

  // ---- all ----

  void write_record(QueueItem& item);
  void require_not_withdrawn(const QueueItem& item) const;
  void note_end(HandOverEnd end);  // under `mutex`
  [[nodiscard]] std::filesystem::path links_root() const { return store.path() / "handover"; }
  [[nodiscard]] std::filesystem::path links_of(const HandOverRecord& record) const {
    return links_root() / record.nonce;
  }
  void reached(std::string_view point) const {
    if (options.at) options.at(point);
  }

  /// Changes what `mutex` guards, and wakes the waiters.
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
  const std::string boot;  // this run of the machine

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
  std::string last_refused;  // the name it concerns
  Clock::time_point last_refused_at{};
  std::string bucket_refusal;  // why writes were refused, if that was the last answer

  // Guards the records of the family `handovers`, and:
  RankedMutex record_mutex{LockRank::queue_record, "PublishQueue::State::record_mutex"};
  std::uint64_t next_order = 1;

  std::minstd_rand random{std::random_device{}()};  // used by the thread only, as is the next
  bool is_proven = false;                           // QueueOptions::prove has returned

  // Guards `thread`.
  RankedMutex thread_mutex{LockRank::queue_thread, "PublishQueue::State::thread_mutex"};
  std::jthread thread;

  WaitBudget waits{kWriterWait};  // of hand-overs, by user

  EarlyWork early;  // last: its thread calls early_parent()
};

}  // namespace weightfs
