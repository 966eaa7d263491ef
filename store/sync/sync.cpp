#include "store/sync/sync.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "store/materialize/check_images.hpp"
#include "store/sync/sync_state.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProgressInterval{200};
constexpr std::chrono::seconds kRemakePatience{10};  // for a bucket that does not answer
constexpr std::chrono::seconds kRecordTime{5};  // time limit to read a record that the store should
                                                // have

/// By the clock of now: one that is set meanwhile changes no duration.
std::int64_t seconds_of(Clock::time_point time) {
  using std::chrono::floor, std::chrono::seconds, std::chrono::system_clock;
  const auto ago = std::chrono::duration_cast<system_clock::duration>(Clock::now() - time);
  return floor<seconds>((system_clock::now() - ago).time_since_epoch()).count();
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
  check_images(store, history, options.checking, options.checking_progress);
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

void Sync::State::show(std::uint64_t number) {
  const auto version = history.get(number, Context{}.within(kRecordTime));
  if (store.manifests().newest().version < number)
    store.manifests().put_newest({number, version->manifest_sha256});
  shown.builder().note(*version);
  const std::int64_t newest_time = shown.builder().newest_time();
  change([&] {
    note_exists_up_to(number);
    if (options.follow.what.kind == Follow::Kind::latest) status.followed = status.newest;
    status.newest_time = newest_time;
    known_empty = false;
  });
  show_catalog(nullptr);
}

/// Requires: the mutex is held.
void Sync::State::note_exists_up_to(std::uint64_t newest) {
  if (newest <= status.newest) return;
  // What did not exist when it was asked for does now.
  unfilled.erase(unfilled.upper_bound(status.newest), unfilled.upper_bound(newest));
  status.newest = newest;
}

std::int64_t Sync::State::behind_since(std::uint64_t latest, std::int64_t newest_time) const {
  const auto behind = watches.find_behind(latest);
  if (!behind) return 0;
  const std::int64_t since = seconds_of(behind->since);
  if (behind->is_exact) return since;
  return std::min(since, behind->published != 0 ? behind->published : newest_time);
}

/// Since when the poll that runs has had no answer.  Requires: the mutex is held.
std::optional<Clock::time_point> Sync::State::silent_since() const {
  if (!polling_since) return std::nullopt;
  return std::max(*polling_since, history.repository().last_answer());
}

/// A poll of a file system that hangs ends never, and throws nothing.  One that reads many
/// manifests takes long, and has answers. Requires: the mutex is held.
void Sync::State::tell_silence(SyncStatus& now) const {
  const auto patience = options.follow.poll.patience;
  const auto silent = silent_since();
  const bool is_silent = silent && Clock::now() - *silent > patience;
  const auto since = is_silent && !offline_since ? silent : offline_since;
  if (since) now.offline_since = seconds_of(*since);
  if (!is_silent) return;
  now.state = SyncStatus::State::waiting;
  if (!now.error.empty()) return;
  now.error =
      fmt::format("a poll of {} has had no answer for more than {:g} s; it is waited for",
                  history.repository().url(), std::chrono::duration<double>(patience).count());
  now.error_code = to_string(ErrorCode::unavailable);
  now.error_time = seconds_of(*silent + patience);
}

Eviction::Reservation Sync::State::reserve(std::uint64_t version, const Context& context) const {
  return store.eviction().reserve(version, Eviction::Claim::in_use, context);
}

// ---- public calls ----

Sync::Sync(Store& store, History& history, SyncOptions options)
    : state_(std::make_unique<State>(store, history, std::move(options))) {}

Sync::~Sync() {
  stop();
  state_->stop_workers();
  state_->store.eviction().set_changed({});
  state_->shown.builder().set_partials(nullptr);
  if (state_->partials) state_->partials->stop();  // its threads call what asks this pointer
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
    state_->tell_silence(status);
    for (const auto& [number, error] : state_->unfilled) {
      status.partial[number] = {.error = error, .is_damaged = true};
    }
  }
  status.latest = latest;
  status.behind_since = state_->behind_since(latest, status.newest_time);
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

std::int64_t Sync::behind_since(std::uint64_t latest) const {
  std::unique_lock lock(state_->mutex);
  const std::int64_t newest_time = state_->status.newest_time;
  lock.unlock();
  return state_->behind_since(latest, newest_time);
}

std::uint64_t Sync::newest() const {
  const std::lock_guard lock(state_->mutex);
  return state_->status.newest;
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
