// A round: poll the bucket, bring the newest version into the store, persist the record of the
// newest version, make the catalog.  The catalog always follows from the store's records (see
// catalog_builder.hpp), so it is right after an error at any point.
//
// Two activities back off independently: polling, while the bucket is unreachable, and bringing in
// a version that cannot be built.  So a newer version is seen soon even if an older one is broken.
#include "store/sync/sync.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/retry_delay.hpp"
#include "store/catalog/shown_catalog.hpp"
#include "store/materialize/check_images.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/whole_version.hpp"
#include "store/sync/delta_finisher.hpp"
#include "store/sync/image_syncer.hpp"
#include "store/sync/poller.hpp"
#include "store/sync/remake_version.hpp"
#include "store/sync/version_watches.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProgressInterval{200};
constexpr std::uint64_t kFallbacksMax = 64;
constexpr std::chrono::seconds kRemakePatience{10};  // for a bucket that does not answer
constexpr std::size_t kUnfilledMax = 16;             // entries in the status
constexpr std::chrono::seconds kRecordTime{5};  // time limit to read a record that the store should
                                                // have

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

}  // namespace

std::string_view to_string(SyncStatus::State state) noexcept {
  switch (state) {
    case SyncStatus::State::starting:
      return "starting";
    case SyncStatus::State::current:
      return "current";
    case SyncStatus::State::fetching:
      return "fetching";
    case SyncStatus::State::waiting:
      return "waiting";
  }
  return "waiting";
}

struct Sync::State {
  State(Store& the_store, History& the_history, SyncOptions the_options);

  void make_recorder();
  void run(const std::stop_token& stop);
  void wait(const std::stop_token& stop, Clock::time_point polled);
  Clock::time_point find_next_poll(Clock::time_point polled);
  void stop_workers();

  void round(bool retry_now, const Context& context, const Progress& progress);
  void poll(const Context& context, bool can_wait);
  void note_offline();
  [[nodiscard]] bool is_current(const Context& context);
  [[nodiscard]] bool is_filling_first() const;
  [[nodiscard]] std::uint64_t latest() const { return shown.latest(); }
  void remake(const Context& context);
  void bring_wanted(const Context& context, const Progress& progress);
  void bring(std::uint64_t version, const Context& context, const Progress& progress);
  void show_brought(VersionWatch& watch, const Context* bucket);
  bool fill_first(std::uint64_t version, const Context& context, VersionWatch& watch);
  std::shared_ptr<PartialVersion> fill(std::uint64_t version, const Context& context);
  void note_unfilled(std::uint64_t version, const Error& error);
  void fill_asked(const Context& context);
  void note_filled();
  void warn_if_nothing_is_kept(std::uint64_t version, const Context& context);
  void bring_older(const Context& context, const Progress& progress);
  void persist(std::uint64_t version, const Context& context, Durability durability);
  void note_newest(const Context& context);
  void sync_newest() noexcept;
  void note_lost(std::uint64_t version, const Error& error);
  [[nodiscard]] bool may_rebuild() const;
  [[nodiscard]] Eviction::Reservation reserve(std::uint64_t version, const Context& context) const;
  void show_catalog(const Context* bucket);
  void note_swapped();
  void show(std::uint64_t number);
  void read_tags(const Context& context, Clock::time_point until);
  void note_progress(std::string_view what, std::uint64_t done, std::uint64_t total);

  void failed(const Error& error);
  void succeeded(SyncStatus::State now);

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
  SyncStatus status;
  bool known_empty = false;          // the bucket has no version to follow
  std::optional<Error> first_error;  // of a store with nothing to show
  std::string phase;
  std::uint64_t phase_done = 0, phase_total = 0;
  std::set<std::uint64_t> asked;            // versions to be filled
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

Sync::State::State(Store& the_store, History& the_history, SyncOptions the_options)
    : store(the_store),
      history(the_history),
      options(std::move(the_options)),
      shown(the_store, the_history, options.follow.what, options.with_absent, options.only,
            [this] { note_swapped(); }),
      watches(the_store),
      poller(the_store, the_history, shown.builder(), watches, options.follow) {
  if (options.partial) {
    partials = std::make_unique<PartialImages>(
        store, history,
        PartialImagesOptions{.only = options.only,
                             .coder = options.coder,
                             .changed = [this] { note_filled(); },
                             .gave_up = [this] { shown.show_room_made(); }});
    shown.builder().set_partials(partials.get());
  }
  check_images(store, history, options.checking);
  syncer = std::make_unique<ImageSyncer>(
      store,
      ImageSyncer::Listener{
          .lost = [this](std::uint64_t version, const Error& error) { note_lost(version, error); },
          .removed = [this] { change([&] { woken = true; }); },
          .synced =
              [this](std::uint64_t version) {
                change([&] { lost_failures = 0; });
                watches.note_synced(version);
                if (room_ahead) room_ahead->wake();
              }});
  if (store.images().memory() != nullptr) {
    base_writer = std::make_unique<BaseWriter>(store, history);
    remaking = !store.images().complete_versions().empty();
  } else if (options.follow.what.kind != Follow::Kind::version) {
    room_ahead = std::make_unique<RoomAhead>(store);
  }
  if (options.head_start && options.follow.what.kind == Follow::Kind::latest) {
    head_start = std::make_unique<HeadStart>(store, history, options.coder,
                                             [this] { change([&] { is_due_known = true; }); });
  }
  make_recorder();
  finisher = std::make_unique<DeltaFinisher>(store);
  show_catalog(nullptr);
  store.eviction().set_changed([this] { shown.show_room_made(); });
  poller.has(latest());
  status.newest = poller.newest();
  status.follow = options.follow.what;
  status.followed = poller.wanted();
  status.newest_time = shown.get()->repository_time;
}

void Sync::State::make_recorder() {
  PatchRecorderOptions how;
  how.history = options.history;
  how.keeps_a_part = !options.only.empty();
  how.recorded = [this] {
    if (base_writer) base_writer->wake();
    shown.listeners().recorded();
  };
  how.coder = options.coder;
  recorder = std::make_unique<PatchRecorder>(store, history, std::move(how));
}

// ---- the thread ----

void Sync::State::run(const std::stop_token& stop) {
  const Context context{stop, Clock::time_point::max()};
  {
    const std::lock_guard lock(round_mutex);
    remake(context);
  }
  while (!stop.stop_requested()) {
    Clock::time_point polled;
    {
      const std::lock_guard lock(round_mutex);
      try {
        round(false, context, {});
      } catch (const Error&) {
        // failed() has already put it into the status and the log.
      } catch (const std::exception& error) {
        log_warning(fmt::format("sync: {}", error.what()));
      }
      change([&] { remaking = false; });
      fill_asked(context);
      polled = Clock::now();
      try {
        read_tags(context, find_next_poll(polled));
      } catch (const std::exception& error) {
        log_warning(fmt::format("sync: cannot show new tags: {}", error.what()));
      }
    }
    wait(stop, polled);
  }
}

/// Until the next poll, which may become due while it is waited for.
void Sync::State::wait(const std::stop_token& stop, Clock::time_point polled) {
  bool is_over = false;
  while (!is_over && !stop.stop_requested()) {
    Clock::time_point next;
    {
      const std::lock_guard lock(round_mutex);
      next = find_next_poll(polled);
    }
    std::unique_lock lock(mutex);
    const bool is_told =
        changed.wait_until(lock, stop, next, [this] { return woken || is_due_known; });
    is_over = !is_told || woken;
    if (is_over) woken = false;
    is_due_known = false;
  }
}

/// Requires: round_mutex is held.
Clock::time_point Sync::State::find_next_poll(Clock::time_point polled) {
  if (head_start) poller.expect(head_start->due());
  return polled + poller.delay();
}

/// Of what happens after the flip.
void Sync::State::stop_workers() {
  syncer->stop();
  recorder->stop();
  finisher->stop();
  if (base_writer) base_writer->stop();
  if (room_ahead) room_ahead->stop();
  if (head_start) head_start->stop();
}

// ---- a round ----

void Sync::State::round(bool retry_now, const Context& context, const Progress& progress) {
  try {
    with_errors([&] {
      poll(context, !retry_now);
      if (is_filling_first()) return succeeded(SyncStatus::State::fetching);
      const bool due =
          retry_now || ((poller.wanted() > attempted || Clock::now() >= retry_at) && may_rebuild());
      if (!is_current(context) && due) bring_wanted(context, progress);
      if (!is_current(context)) return;
      if (poller.beyond()) throw Error(*poller.beyond());
      if (head_start) head_start->wake();
      succeeded(SyncStatus::State::current);
    });
  } catch (const Error& error) {
    failed(error);
    throw;
  }
}

/// The version shown may be newer than the last poll's result.  It may lack files that are kept, if
/// the store belonged to a mount that kept other files.
bool Sync::State::is_current(const Context& context) {
  const std::shared_ptr<const Catalog> catalog = shown.get();
  const std::uint64_t number = catalog->latest;
  if (poller.wanted() > number || catalog->incomplete.contains(number)) return false;
  return number == 0 || has_kept_files(store, history, number, options.only, context);
}

/// While the first version is filled it has the bucket to itself. Its errors are reported as the
/// host's, since there is nothing else to show.  If it is damaged, a later version is brought in as
/// if the first did not exist.
bool Sync::State::is_filling_first() const {
  const std::uint64_t number = latest();
  const auto first = partials ? partials->find(number) : nullptr;
  if (!first || first->is_complete()) return false;
  const PartialProgress progress = first->progress();
  if (progress.is_damaged && poller.wanted() > number) return false;
  if (progress.error) throw Error(*progress.error);
  return true;
}

void Sync::State::poll(const Context& context, bool can_wait) {
  try {
    poller.poll(context, can_wait);
  } catch (const Error& error) {
    if (is_offline(error.code())) note_offline();
    throw;
  }
  if (poller.is_back()) retry_at = {};  // what failed before may work now
  const std::int64_t newest_time = shown.builder().newest_time();
  change([&] {
    status.offline_since = 0;
    status.checked_time = seconds_now();
    status.rhythm = poller.rhythm();
    status.newest = std::max(status.newest, poller.newest());
    status.followed = std::max(status.followed, poller.wanted());
    status.newest_time = newest_time;
    known_empty = poller.wanted() == 0 && !poller.beyond();
  });
}

void Sync::State::note_offline() {
  change([&] {
    if (status.offline_since == 0) status.offline_since = seconds_now();
  });
}

/// What this host had is shown before the bucket is asked, which may be away.
void Sync::State::remake(const Context& context) {
  const bool has_less = latest() > 0 && options.follow.what.kind == Follow::Kind::latest &&
                        latest() < store.manifests().newest().version;
  if (!has_less) return;
  RemakeOptions how{options.coder, options.only, {}, {}};
  how.progress = [this](auto... report) { note_progress(report...); };
  how.made = [this](VersionWatch& watch) {
    poller.has(watch.timing.version);
    show_brought(watch, nullptr);
  };
  if (remake_newest(store, history, how, context)) change([&] { remaking = false; });
}

void Sync::State::bring_wanted(const Context& context, const Progress& progress) {
  change([&] { status.state = SyncStatus::State::fetching; });
  const std::uint64_t version = std::max(poller.wanted(), latest());
  try {
    with_errors([&] { bring(version, context, progress); });
    attempted = 0;
    bring_failures = 0;
  } catch (const Error& error) {
    attempted = version;
    bring_failures++;
    const bool may_be_older = options.follow.what.kind == Follow::Kind::latest;
    if (may_be_older && is_about_objects(error.code())) bring_older(context, progress);
    show_catalog(&context);
    retry_at = Clock::now() + retry_delay(options.follow.poll.interval, bring_failures, random);
    throw;
  }
}

void Sync::State::bring(std::uint64_t version, const Context& context, const Progress& progress) {
  // Reserved until `latest` names it.
  const auto bringing = store.eviction().reserve(version, Eviction::Claim::stays, context);
  if (room_ahead) room_ahead->note_coming();
  recorder->note_coming();
  VersionWatch watch = watches.watch(version);
  watch.timing.attempts = attempted == version ? bring_failures + 1 : 1;
  watch.lap(attempted == 0 ? &VersionTiming::plan : &VersionTiming::wait);
  if (partials && fill_first(version, context, watch)) return;
  note_progress("", 0, 0);
  const Progress noting = [&](std::string_view what, std::uint64_t done, std::uint64_t total) {
    note_progress(what, done, total);
    if (progress) progress(what, done, total);
  };
  materialize(store, history, version, context, noting, options.coder, options.only, &watch);
  note_newest(context);
  warn_if_nothing_is_kept(version, context);
  watch.lap(&VersionTiming::record);
  show_brought(watch, &context);
  sync_newest();
}

/// `bucket`: as of show_catalog().
void Sync::State::show_brought(VersionWatch& watch, const Context* bucket) {
  const std::uint64_t version = watch.timing.version;
  show_catalog(bucket);
  watch.lap(&VersionTiming::flip);
  finisher->wake();
  if (latest() >= version) {
    watches.note_shown(watch);
    if (room_ahead) room_ahead->note_shown(version);
    return;
  }
  throw Error(ErrorCode::io,
              fmt::format("version {} is here but cannot be shown; the log says why", version));
}

void Sync::State::warn_if_nothing_is_kept(std::uint64_t version, const Context& context) {
  if (options.only.empty() || warned_of_only) return;
  const auto layout = history.layout(*history.get(version, context), context);
  const FileSet without = left_out(*layout, options.only);
  const bool keeps_nothing = std::find(without.begin(), without.end(), false) == without.end();
  if (layout->files().empty() || !keeps_nothing) return;
  warned_of_only = true;
  log_warning(
      fmt::format("--only matches no weights file of version {} (the first is '{}'): none is kept "
                  "here; each is built from the bucket whenever it is read",
                  version, layout->files().front().path));
}

/// Returns: false if the host already has something to show, so that `version` is to be brought in
/// whole.
bool Sync::State::fill_first(std::uint64_t version, const Context& context, VersionWatch& watch) {
  if (latest() == 0) show_catalog(&context);
  if (latest() != 0) return false;
  const auto first = partials->begin(version, context, &watch);
  warn_if_nothing_is_kept(version, context);
  note_newest(context);
  watch.lap(&VersionTiming::record);
  shown.builder().show_first(version);
  change([&] { filling_first = first != nullptr; });
  show_catalog(&context);
  watch.lap(&VersionTiming::flip);
  if (first != nullptr) watches.note_streamed(watch);
  sync_newest();
  return first != nullptr && latest() == version;
}

/// Fills a version that is opened by name: it must be in the catalog, even if it was just being
/// evicted.
std::shared_ptr<PartialVersion> Sync::State::fill(std::uint64_t version, const Context& context) {
  std::shared_ptr<PartialVersion> filled;
  VersionWatch watch(version);
  try {
    persist(version, context, Durability::power);
    watch.lap(&VersionTiming::record);
    filled = partials->begin(version, context, &watch);
  } catch (const Error& error) {
    const bool passes =
        error.code() == ErrorCode::cancelled || error.code() == ErrorCode::timed_out;
    if (!passes) note_unfilled(version, error);
    throw;
  }
  change([&] { unfilled.erase(version); });
  store.eviction().wait_settled(version, context);
  show_catalog(&context);
  watch.lap(&VersionTiming::flip);
  if (filled) watches.note_streamed(watch);
  return filled;
}

void Sync::State::note_unfilled(std::uint64_t version, const Error& error) {
  change([&] {
    unfilled.insert_or_assign(version, error);
    if (unfilled.size() > kUnfilledMax) unfilled.erase(unfilled.begin());
  });
}

void Sync::State::fill_asked(const Context& context) {
  std::set<std::uint64_t> versions;
  change([&] { versions.swap(asked); });
  for (const std::uint64_t version : versions) {
    try {
      with_errors([&] {
        const auto reserved = reserve(version, context);
        fill(version, context);
      });
    } catch (const Error& error) {
      note_unfilled(version, error);
      shown.listeners().changed();  // ends the wait of its waiters
    }
  }
}

/// Called by PartialImages.  When the first version is complete the thread continues at once.
void Sync::State::note_filled() {
  watches.note_filled();
  show_catalog(nullptr);
  const std::shared_ptr<const Catalog> catalog = shown.get();
  if (!catalog->versions.contains(catalog->latest)) return;
  change([&] {
    woken = woken || filling_first;
    filling_first = false;
  });
}

/// The newest version cannot be built; an older one may work.
void Sync::State::bring_older(const Context& context, const Progress& progress) {
  const std::uint64_t newest = poller.newest();
  const std::uint64_t least = std::max(latest(), newest - std::min(newest, kFallbacksMax + 1));
  for (std::uint64_t version = newest - 1; version > least; version--) {
    try {
      return with_errors([&] { bring(version, context, progress); });
    } catch (const Error& error) {
      if (!is_about_objects(error.code())) return;
    }
  }
}

/// Called before `latest` moves, so that a restart cannot take readers back to an older version.
/// No version above the store's newest is shown, even if complete. That record may lag behind if
/// the disk had no room for it.
void Sync::State::persist(std::uint64_t version, const Context& context, Durability durability) {
  if (store.manifests().newest().version < version) {
    const Sha256 hash = history.get(version, context)->manifest_sha256;
    store.manifests().put_newest({version, hash}, durability);
  } else if (durability == Durability::power) {
    store.manifests().sync_newest();
  }
}

/// Before a version is shown: that waits for no disk.
void Sync::State::note_newest(const Context& context) {
  persist(poller.newest(), context, Durability::process);
}

/// When it is shown.  After a power cut before that the poll tells what is the newest version.
void Sync::State::sync_newest() noexcept {
  try {
    store.manifests().sync_newest();
  } catch (const std::exception& error) {
    log_warning(fmt::format("that version {} is the newest is not on the disk yet: {}",
                            store.manifests().newest().version, error.what()));
  }
}

/// Called by the syncer.  The next round brings it again, unless that was in vain before.
void Sync::State::note_lost(std::uint64_t version, const Error& error) {
  change([&] {
    status.lost++;
    status.state = SyncStatus::State::waiting;
    status.error =
        fmt::format("version {} is lost and hidden: {}; it is rebuilt", version, error.what());
    status.error_code = to_string(error.code());
    status.error_time = seconds_now();
    const auto pause = retry_delay(options.follow.poll.interval, lost_failures++, lost_random);
    rebuild_at = lost_failures == 1 ? Clock::time_point() : Clock::now() + pause;
  });
  show_catalog(nullptr);
}

bool Sync::State::may_rebuild() const {
  const std::lock_guard lock(mutex);
  return Clock::now() >= rebuild_at;
}

Eviction::Reservation Sync::State::reserve(std::uint64_t version, const Context& context) const {
  return store.eviction().reserve(version, Eviction::Claim::in_use, context);
}

/// `bucket`: as of ShownCatalog::show().
void Sync::State::show_catalog(const Context* bucket) {
  shown.show(bucket);
  if (syncer) syncer->wake();
  recorder->wake();
  if (base_writer) base_writer->wake();
}

/// Called by ShownCatalog.
void Sync::State::note_swapped() {
  const std::uint64_t image_bytes = store.images().image_bytes();
  std::optional<MemoryStatus> memory;
  if (store.images().memory() != nullptr) memory.emplace().bytes = store.images().memory_bytes();
  change([&] {
    status.image_bytes = image_bytes;
    status.memory = memory;
  });
}

void Sync::State::show(std::uint64_t number) {
  const auto version = history.get(number, Context{}.within(kRecordTime));
  if (store.manifests().newest().version < number)
    store.manifests().put_newest({number, version->manifest_sha256});
  shown.builder().note(*version);
  const std::int64_t newest_time = shown.builder().newest_time();
  change([&] {
    status.newest = std::max(status.newest, number);
    if (options.follow.what.kind == Follow::Kind::latest) status.followed = status.newest;
    status.newest_time = newest_time;
    known_empty = false;
  });
  show_catalog(nullptr);
}

void Sync::State::read_tags(const Context& context, Clock::time_point until) {
  if (!options.tags || !poller.is_reachable()) return;
  if (shown.builder().read_tags(poller.newest(), context, until)) show_catalog(&context);
}

void Sync::State::note_progress(std::string_view what, std::uint64_t done, std::uint64_t total) {
  const std::lock_guard lock(mutex);
  if (phase != what) phase_done = 0;
  const std::uint64_t more = done - std::min(done, phase_done);  // threads may report out of order
  if (what.starts_with("fetching")) status.fetched_bytes += more;
  phase = what;
  phase_done += more;
  phase_total = total;
}

void Sync::State::failed(const Error& error) {
  if (error.code() == ErrorCode::cancelled)
    return change([&] { status.state = SyncStatus::State::waiting; });
  if (logged != error.what()) {
    logged = error.what();
    const std::uint64_t served = latest();
    log_warning(served > 0 ? fmt::format("sync: {}; still serving version {}", error.what(), served)
                           : fmt::format("sync: {}; there is nothing to serve yet", error.what()));
  }
  change([&] {
    status.state = SyncStatus::State::waiting;
    status.error = error.what();
    status.error_code = to_string(error.code());
    status.error_time = seconds_now();
    status.failures[status.error_code]++;
    if (latest() == 0 && !first_error) first_error = error;
  });
}

void Sync::State::succeeded(SyncStatus::State now) {
  if (!logged.empty()) log_info(fmt::format("sync: recovered, at version {}", latest()));
  logged.clear();
  change([&] {
    status.state = now;
    status.error.clear();
    status.error_code.clear();
    status.error_time = 0;
    first_error.reset();
  });
}

// ---- public calls ----

Sync::Sync(Store& store, History& history, SyncOptions options)
    : state_(std::make_unique<State>(store, history, std::move(options))) {}

Sync::~Sync() {
  stop();
  state_->stop_workers();
  state_->store.eviction().set_changed({});
  state_->shown.builder().set_partials(nullptr);
  state_->partials.reset();
}

void Sync::start() {
  const std::lock_guard lock(state_->thread_mutex);
  if (state_->thread.joinable()) return;
  state_->thread = std::jthread([this](const std::stop_token& stop) { state_->run(stop); });
  state_->syncer->start();
  if (state_->base_writer) state_->base_writer->start();
  state_->recorder->start();
  state_->finisher->start();
  if (state_->room_ahead) state_->room_ahead->start();
  if (state_->head_start) state_->head_start->start();
}

void Sync::stop() {
  const std::lock_guard lock(state_->thread_mutex);
  if (!state_->thread.joinable()) return;
  state_->thread.request_stop();
  state_->thread.join();
  state_->stop_workers();
}

CatalogListeners::Listening Sync::listen(CatalogListener listener) {
  return state_->shown.listeners().add(std::move(listener));
}

std::shared_ptr<const Catalog> Sync::catalog() const { return state_->shown.get(); }

SyncStatus Sync::status() const {
  SyncStatus status;
  const std::uint64_t latest = state_->latest();  // before `newest`, which goes up first
  {
    const std::lock_guard lock(state_->mutex);
    status = state_->status;
    for (const auto& [number, error] : state_->unfilled) {
      status.partial[number] = {.error = error, .is_damaged = true};
    }
  }
  status.latest = latest;
  const ImageTable& images = state_->store.images();
  status.unsynced = images.unsynced_versions();
  if (images.memory() != nullptr) {
    status.memory = {status.memory ? status.memory->bytes : 0, images.versions_in_memory(),
                     images.base_version(), state_->base_writer->renewals()};
  }
  status.history = state_->recorder->status();
  status.deltas = state_->store.deltas().counters();
  if (state_->room_ahead) status.room_ahead = state_->room_ahead->status();
  if (state_->head_start) {
    status.head_start = state_->head_start->status();
    status.fetched_bytes += state_->head_start->fetched_bytes();
  }
  if (!state_->partials) return status;
  status.fetched_bytes += state_->partials->fetched_bytes();
  for (const auto& [number, partial] : state_->partials->list()) {
    status.partial.insert_or_assign(number, partial->progress());
  }
  return status;
}

void Sync::wait_ready(const Context& context, const Progress& progress) {
  std::unique_lock lock(state_->mutex);
  const Clock::time_point patience_ends = Clock::now() + kRemakePatience;
  const auto ready = [&] {
    const bool answers = state_->status.checked_time != 0 || Clock::now() < patience_ends;
    const bool waits = state_->remaking && answers;
    return (state_->latest() > 0 && !waits) || state_->known_empty || state_->first_error;
  };
  while (!state_->changed.wait_until(
      lock, context.stop, std::min(context.deadline, Clock::now() + kProgressInterval), ready)) {
    const auto [phase, done, total] =
        std::tuple(state_->phase, state_->phase_done, state_->phase_total);
    lock.unlock();
    context.check("waiting for the first version");
    if (progress && !phase.empty()) progress(phase, done, total);
    lock.lock();
  }
  if (state_->latest() == 0 && !state_->known_empty) throw Error(*state_->first_error);
}

void Sync::show(std::uint64_t version) { state_->show(version); }

void Sync::name_version(std::uint64_t version, const Context& context) {
  try {
    state_->shown.builder().name(version, context);
  } catch (const Error& error) {
    throw error.within(fmt::format("version {}", version));
  }
  state_->show_catalog(&context);
}

Eviction::Reservation Sync::reserve(std::uint64_t version, const Context& context) {
  return state_->reserve(version, context);
}

void Sync::sync_images() { state_->syncer->sync_all(); }

bool Sync::record_noted(const Context& context) { return state_->recorder->record_noted(context); }

void Sync::finish_deltas(const Context& context) { state_->finisher->finish_all(context); }

std::optional<Eviction::Reservation> Sync::try_reserve(std::uint64_t version) {
  return state_->store.eviction().try_reserve(version, Eviction::Claim::in_use);
}

bool Sync::opens_by_name() const noexcept { return state_->partials != nullptr; }

std::shared_ptr<PartialVersion> Sync::fill_version(std::uint64_t version, const Context& context) {
  return state_->fill(version, context);
}

void Sync::ask_for(std::uint64_t version) {
  if (!state_->partials) return;
  state_->change([&] {
    state_->unfilled.erase(version);
    state_->asked.insert(version);
    state_->woken = true;
  });
}

std::shared_ptr<PartialVersion> Sync::find_partial(std::uint64_t version) const {
  return state_->partials ? state_->partials->find(version) : nullptr;
}

void Sync::run_once(const Context& context, const Progress& progress) {
  const std::lock_guard lock(state_->round_mutex);
  try {
    state_->round(true, context, progress);
    state_->change([&] { state_->remaking = false; });
  } catch (const Error&) {
    state_->change([&] { state_->remaking = false; });
    state_->read_tags(context, Clock::time_point::max());
    throw;
  }
  state_->read_tags(context, Clock::time_point::max());
}

}  // namespace weightfs
