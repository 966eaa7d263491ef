#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "store/base/log.hpp"
#include "store/base/retry_delay.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/whole_version.hpp"
#include "store/sync/sync_state.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kFallbacksMax = 64;
constexpr unsigned kOlderTurn = 16;       // failures; minutes, at the usual intervals
constexpr std::size_t kUnfilledMax = 16;  // entries in the status

}  // namespace

// ---- a whole version ----

void Sync::State::bring_wanted(const Context& context, const Progress& progress) {
  change([&] { status.state = SyncStatus::State::fetching; });
  const std::uint64_t version = std::max(poller.wanted(), latest());
  try {
    with_errors([&] { bring(version, context, progress); });
    attempted = 0;
    bring_failures = 0;
  } catch (const Error& error) {
    if (std::exchange(attempted, version) != version) object_failures = 0;
    bring_failures++;
    const bool may_be_older =
        options.follow.what.kind == Follow::Kind::latest && is_about_objects(error.code());
    if (may_be_older && is_turn_of_older() && bring_older(context, progress) &&
        bring_after_all(version, context, progress)) {
      log_info(fmt::format("version {} is made of the one before: {}", version, error.what()));
      return;
    }
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

/// What was missing may be the snapshot that it would have begun with: now there is a version here.
bool Sync::State::bring_after_all(std::uint64_t version, const Context& context,
                                  const Progress& progress) {
  try {
    with_errors([&] { bring(version, context, progress); });
  } catch (const Error&) {
    return false;  // as before
  }
  attempted = 0;
  bring_failures = 0;
  return true;
}

/// They are many: all are tried at the first failure, and then less and less often.
bool Sync::State::is_turn_of_older() {
  object_failures++;
  return std::has_single_bit(object_failures) || object_failures % kOlderTurn == 0;
}

/// The newest version cannot be built; an older one may work.  Returns: whether one did.
bool Sync::State::bring_older(const Context& context, const Progress& progress) {
  const std::uint64_t newest = poller.newest();
  const std::uint64_t least = std::max(latest(), newest - std::min(newest, kFallbacksMax + 1));
  for (std::uint64_t version = newest - 1; version > least; version--) {
    try {
      with_errors([&] { bring(version, context, progress); });
      return true;
    } catch (const Error& error) {
      if (is_about_objects(error.code())) continue;
      object_failures = 0;  // nothing was learnt of the others
      return false;
    }
  }
  return false;
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
    log_if_possible(LogLevel::warning, [&] {
      return fmt::format("that version {} is the newest is not on the disk yet: {}",
                         store.manifests().newest().version, error.what());
    });
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

// ---- a version that is read while it is filled ----

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
    forget_filled();
    if (unfilled.size() > kUnfilledMax) unfilled.erase(unfilled.begin());
  });
}

/// Of what could not be filled, those that are whole now, however they came.
/// Requires: the mutex is held.
void Sync::State::forget_filled() {
  const std::shared_ptr<const Catalog> catalog = shown.get();
  std::erase_if(unfilled, [&](const auto& one) { return catalog->versions.contains(one.first); });
}

/// Between two of them the bucket is polled; while it is away that would only take time, so then
/// all that are there now are taken.  Who asks meanwhile comes after the next poll, which may reach
/// it.
void Sync::State::fill_all_asked(const Context& context) {
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex);
    count = asked.size();
  }
  while (count-- > 0 && fill_asked(context) && !poller.is_reachable()) {
  }
}

/// The oldest.  Returns: whether there was one; why it could not be begun is noted.
bool Sync::State::fill_asked(const Context& context) {
  decltype(asked)::node_type taken;
  change([&] {
    if (!asked.empty()) taken = asked.extract(asked.begin());
  });
  if (!taken) return false;
  const std::uint64_t version = taken.value();
  try {
    try {
      with_errors([&] {
        const auto reserved = reserve(version, context);
        fill(version, context);
      });
    } catch (const Error& error) {
      note_unfilled(version, error);
      shown.listeners().changed();  // ends the wait of its waiters
    }
  } catch (...) {  // for want of memory nobody was told: once more
    change([&] { asked.insert(std::move(taken)); });
    throw;
  }
  return true;
}

/// Called by PartialImages.  When the first version is complete the thread continues at once.
void Sync::State::note_filled() {
  watches.note_filled();
  show_catalog(nullptr);
  const std::shared_ptr<const Catalog> catalog = shown.get();
  if (!catalog->versions.contains(catalog->latest)) return;
  if (partials && partials->find(catalog->latest)) return;  // recorded, but not ended yet
  change([&] {
    woken = woken || filling_first;
    filling_first = false;
  });
}

// ---- what is shown ----

/// `bucket`: as of ShownCatalog::show().
void Sync::State::show_catalog(const Context* bucket) {
  shown.show(bucket);
  if (syncer) syncer->wake();
  recorder->wake();
  if (base_writer) base_writer->wake();
}

/// Called by ShownCatalog.
void Sync::State::note_swapped() {
  std::optional<std::uint64_t> image_bytes;
  std::optional<MemoryStatus> memory;
  try {
    image_bytes = store.images().image_bytes();
    if (store.images().memory() != nullptr) memory.emplace().bytes = store.images().memory_bytes();
  } catch (const Error& error) {  // of use to nobody but `status`, which says what it was
    log_warning(error.what());
  }
  change([&] {
    if (image_bytes) status.image_bytes = *image_bytes;
    if (memory) status.memory = memory;
    forget_filled();
  });
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

}  // namespace weightfs
