#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "store/base/log.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/sync/remake_version.hpp"
#include "store/sync/sync_state.hpp"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kWithoutMemory{1};

}  // namespace

// ---- the thread ----

void Sync::State::run(const std::stop_token& stop) {
  const Context context{stop, Clock::time_point::max()};
  bool is_first = true;
  while (!stop.stop_requested()) {
    try {
      wait(stop, run_round(std::exchange(is_first, false), context));
    } catch (const std::exception& error) {  // no memory, mostly
      log_caught("sync", error);
      std::unique_lock lock(mutex);
      changed.wait_for(lock, stop, kWithoutMemory, [] { return false; });
    }
  }
}

/// Returns: when the bucket was polled.
Clock::time_point Sync::State::run_round(bool is_first, const Context& context) {
  const std::lock_guard lock(round_mutex);
  if (is_first) remake(context);
  try {
    round(false, context, {});
  } catch (const Error&) {
    // failed() has already put it into the status and the log.
  } catch (const std::exception& error) {
    log_warning(fmt::format("sync: {}", error.what()));
  }
  change([&] { remaking = false; });
  fill_all_asked(context);
  const Clock::time_point polled = Clock::now();
  try {
    read_tags(context, find_next_poll(polled));
  } catch (const std::exception& error) {
    log_warning(fmt::format("sync: cannot show new tags: {}", error.what()));
  }
  return polled;
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
    const auto has_work = [this] { return woken || !asked.empty(); };
    const bool is_told =
        changed.wait_until(lock, stop, next, [&] { return has_work() || is_due_known; });
    is_over = !is_told || has_work();
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
      if (poller.hidden_tag()) throw Error(*poller.hidden_tag());
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

/// While the first version is filled, until it is recorded and others can be built from it, it has
/// the bucket to itself.  Its errors are reported as the host's, since there is nothing else to
/// show.  If it is damaged or cannot be recorded, a later version is brought in as if the first did
/// not exist.
bool Sync::State::is_filling_first() const {
  const std::uint64_t number = latest();
  const auto first = partials ? partials->find(number) : nullptr;
  if (!first) return false;
  if (const auto error = partials->record_error(number)) {
    if (poller.wanted() > number) return false;  // which may make room, too
    throw Error(*error);
  }
  const PartialProgress progress = first->progress();
  if (progress.is_damaged && poller.wanted() > number) return false;
  if (progress.error) throw Error(*progress.error);
  return true;
}

void Sync::State::poll(const Context& context, bool can_wait) {
  {
    const std::lock_guard lock(mutex);
    polling_since = Clock::now();  // nobody waits for it
  }
  try {
    poller.poll(context, can_wait);
  } catch (const Error& error) {
    note_failed_poll(is_offline(error.code()));
    throw;
  } catch (const std::exception&) {
    note_failed_poll(false);
    throw;
  }
  if (poller.is_back()) retry_at = {};  // what failed before may work now
  const std::int64_t newest_time = shown.builder().newest_time();
  watches.note_latest(latest(), newest_time);
  change([&] {
    polling_since.reset();
    offline_since.reset();
    status.checked_time = seconds_now();
    status.rhythm = poller.rhythm();
    note_exists_up_to(poller.newest());
    status.followed = std::max(status.followed, poller.wanted());
    status.newest_time = newest_time;
    known_empty = poller.wanted() == 0 && !poller.beyond();
  });
}

void Sync::State::note_failed_poll(bool is_away) {
  change([&] {
    if (is_away && !offline_since) offline_since = silent_since();
    polling_since.reset();
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

void Sync::State::read_tags(const Context& context, Clock::time_point until) {
  if (!options.tags || !poller.is_reachable()) return;
  if (shown.builder().read_tags(poller.newest(), context, until)) show_catalog(&context);
}

// ---- how it ended ----

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

}  // namespace weightfs
