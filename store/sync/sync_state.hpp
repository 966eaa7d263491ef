// The implementation of Sync: sync.cpp has the public calls, sync_thread.cpp the thread and its
// rounds, sync_bring.cpp how a version is brought into the store, or filled, and shown.
//
// A round: poll the bucket, bring the newest version into the store, persist the record of the
// newest version, make the catalog.  The catalog always follows from the store's records (see
// catalog_builder.hpp), so it is right after an error at any point.
//
// Two activities back off independently: polling, while the bucket is unreachable, and bringing in
// a version that cannot be built.  So a newer version is seen soon even if an older one is broken.
//
// Locks, in this order:
//
//     thread_mutex    the thread
//     round_mutex     a whole round, which waits for the bucket and the disk
//     mutex           what status says, and what wakes the thread; held only briefly
#pragma once

#include <fmt/format.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/catalog/shown_catalog.hpp"
#include "store/streaming/partial_images.hpp"
#include "store/sync/base_writer.hpp"
#include "store/sync/delta_finisher.hpp"
#include "store/sync/head_start.hpp"
#include "store/sync/image_syncer.hpp"
#include "store/sync/patch_recorder.hpp"
#include "store/sync/poller.hpp"
#include "store/sync/room_ahead.hpp"
#include "store/sync/sync.hpp"
#include "store/sync/version_watches.hpp"

namespace weightfs {

struct Sync::State {
  State(Store& the_store, History& the_history, SyncOptions the_options);

  // sync.cpp
  void make_recorder();
  void show(std::uint64_t number);
  [[nodiscard]] Eviction::Reservation reserve(std::uint64_t version, const Context& context) const;
  [[nodiscard]] std::uint64_t latest() const { return shown.latest(); }

  // sync_thread.cpp
  void run(const std::stop_token& stop);
  Clock::time_point run_round(bool is_first, const Context& context);
  void wait(const std::stop_token& stop, Clock::time_point polled);
  Clock::time_point find_next_poll(Clock::time_point polled);
  void stop_workers();
  void round(bool retry_now, const Context& context, const Progress& progress);
  [[nodiscard]] bool is_current(const Context& context);
  [[nodiscard]] bool is_filling_first() const;
  void poll(const Context& context, bool can_wait);
  void note_failed_poll(bool is_away);
  void remake(const Context& context);
  void read_tags(const Context& context, Clock::time_point until);
  void failed(const Error& error);
  void succeeded(SyncStatus::State now);

  // sync_bring.cpp
  void bring_wanted(const Context& context, const Progress& progress);
  void bring(std::uint64_t version, const Context& context, const Progress& progress);
  void show_brought(VersionWatch& watch, const Context* bucket);
  void warn_if_nothing_is_kept(std::uint64_t version, const Context& context);
  bool is_turn_of_older();
  bool bring_older(const Context& context, const Progress& progress);
  bool bring_after_all(std::uint64_t version, const Context& context, const Progress& progress);
  void persist(std::uint64_t version, const Context& context, Durability durability);
  void note_newest(const Context& context);
  void sync_newest() noexcept;
  void note_lost(std::uint64_t version, const Error& error);
  [[nodiscard]] bool may_rebuild() const;
  bool fill_first(std::uint64_t version, const Context& context, VersionWatch& watch);
  std::shared_ptr<PartialVersion> fill(std::uint64_t version, const Context& context);
  void note_unfilled(std::uint64_t version, const Error& error);
  void forget_filled();
  void fill_all_asked(const Context& context);
  bool fill_asked(const Context& context);  // one of them
  void note_filled();
  void show_catalog(const Context* bucket);
  void note_exists_up_to(std::uint64_t newest);
  [[nodiscard]] std::int64_t behind_since(std::uint64_t latest, std::int64_t newest_time) const;
  [[nodiscard]] std::optional<Clock::time_point> silent_since() const;
  void tell_silence(SyncStatus& now) const;
  void note_swapped();
  void note_progress(std::string_view what, std::uint64_t done, std::uint64_t total);

  /// Changes what the mutex guards, and wakes all waiters.
  template <typename Change>
  void change(Change&& changes) {
    {
      const std::lock_guard lock(mutex);
      changes();
    }
    changed.notify_all();
  }

  Store& store;
  History& history;
  const SyncOptions options;

  // Guards the next block; held only briefly.
  mutable RankedMutex mutex{LockRank::sync, "Sync::State::mutex"};
  std::condition_variable_any changed;
  SyncStatus status;                               // without what follows from the next two
  std::optional<Clock::time_point> polling_since;  // nullopt: no poll is under way
  std::optional<Clock::time_point> offline_since;  // see SyncStatus
  bool known_empty = false;                        // the bucket has no version to follow
  std::optional<Error> first_error;                // of a store with nothing to show
  std::string phase;
  std::uint64_t phase_done = 0, phase_total = 0;
  std::set<std::uint64_t> asked;            // versions to be filled; the thread is not to wait
  std::map<std::uint64_t, Error> unfilled;  // by version: why filling could not begin
  bool filling_first = false;               // `latest` is partial
  bool remaking = false;                    // the first round may bring what a restart took
  bool woken = false;                       // the thread is not to wait for the next poll
  bool is_due_known = false;                // HeadStart::due() has changed
  unsigned lost_failures = 0;               // versions that the disk did not take, in a row
  Clock::time_point rebuild_at{};           // of the last of them
  std::minstd_rand lost_random{std::random_device{}()};

  ShownCatalog shown;      // has mutexes of its own
  VersionWatches watches;  // likewise

  // Held for a whole round; guards the next block.
  RankedMutex round_mutex{LockRank::sync_round, "Sync::State::round_mutex"};
  Poller poller;
  std::uint64_t attempted = 0;   // version that could not be brought in
  unsigned bring_failures = 0;   // in a row
  unsigned object_failures = 0;  // of `attempted`, because of objects
  Clock::time_point retry_at{};  // of `attempted`
  std::string logged;            // the last error logged
  bool warned_of_only = false;
  std::minstd_rand random{std::random_device{}()};

  RankedMutex thread_mutex{LockRank::sync_thread, "Sync::State::thread_mutex"};  // guards `thread`
  std::jthread thread;

  std::unique_ptr<ImageSyncer> syncer;      // constant
  std::unique_ptr<BaseWriter> base_writer;  // with images in memory; constant
  std::unique_ptr<PatchRecorder> recorder;  // constant; uses the one above
  std::unique_ptr<DeltaFinisher> finisher;  // constant
  std::unique_ptr<RoomAhead> room_ahead;    // if more versions may come to the disk; constant
  std::unique_ptr<HeadStart> head_start;    // of SyncOptions::head_start; constant
  std::unique_ptr<PartialImages> partials;  // of SyncOptions::partial; constant; ends first
};

/// Runs `body`; turns whatever it throws into an Error.
template <typename Body>
void with_errors(Body&& body) {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::no_memory,
                "there is not enough memory for it here; give weightfs more (its cgroup, its "
                "ulimit, the host): it is tried again");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::io, error.what());
  }
}

}  // namespace weightfs
