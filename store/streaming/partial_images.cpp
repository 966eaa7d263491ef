#include "store/streaming/partial_images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/retry_delay.hpp"
#include "store/format/version_images.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/file_filter.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/patched_base.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/lease.hpp"

namespace weightfs {
namespace {

/// Retry delay for a version whose files are all here but cannot be recorded, usually because the
/// disk is full.
constexpr std::chrono::milliseconds kFirstRecordDelay{1000};
// For want of memory nobody may have said that a version is whole.
constexpr std::chrono::seconds kLookForWhole{10};

/// A damaged object may have thousands of windows, each with a message of its own.
constexpr std::chrono::seconds kLogPause{10};

}  // namespace

struct PartialImages::State {
  State(Store& its_store, History& its_history, PartialImagesOptions its_options)
      : store(its_store), history(its_history), options(std::move(its_options)) {}

  std::shared_ptr<PartialVersion> fill(std::uint64_t version,
                                       const std::set<std::uint64_t>& distrusted,
                                       const Context& making, VersionWatch* watch);
  std::shared_ptr<PartialVersion> make(Plan plan, Eviction::Reservation base,
                                       std::shared_ptr<BuildMeter> meter, const Context& making);
  bool leaves_another_way(const Error& cause, std::optional<Base>& base, int& replans);
  void drop(std::uint64_t version);
  [[nodiscard]] bool nobody_reads_files(std::uint64_t version) const;
  void evict(std::uint64_t version);

  bool note(std::uint64_t version);
  bool note_error(std::uint64_t version, const PartialVersion& filled);

  void complete_all();
  bool complete_whole() noexcept;
  bool complete(std::uint64_t version);
  bool try_to_complete(std::uint64_t version);
  void record(std::uint64_t version, const PartialVersion& filled);
  void note_record_error(std::uint64_t version, ErrorCode code, const char* why);
  void end(std::uint64_t version);

  [[nodiscard]] std::shared_ptr<PartialVersion> find(std::uint64_t version) const {
    const std::lock_guard lock(mutex);
    const auto found = filling.find(version);
    return found == filling.end() ? nullptr : found->second;
  }
  [[nodiscard]] std::set<std::uint64_t> damaged_bases() const {
    const std::lock_guard lock(mutex);
    return damaged;
  }
  void tell() const {
    if (options.changed) options.changed();
  }

  Store& store;
  History& history;
  const PartialImagesOptions options;
  std::stop_source stop_source;
  const Context context{stop_source.get_token(), Clock::time_point::max()};

  // Held so that errors are reported in order; before `mutex`.
  RankedMutex error_mutex{LockRank::partial_errors, "PartialImages::State::error_mutex"};
  struct Told {
    std::string message;
    bool is_damaged = false;
    Clock::time_point log_again{};
  };
  std::map<std::uint64_t, Told> told;  // by version
  // Guards what follows.
  mutable RankedMutex mutex{LockRank::partial_images, "PartialImages::State::mutex"};
  std::condition_variable_any whole_changed;
  std::map<std::uint64_t, std::shared_ptr<PartialVersion>> filling;
  std::map<std::uint64_t, Eviction::Reservation> bases;  // reserved for the versions in `filling`
  bool has_whole = false;                                // all files of one of them have come
  std::set<std::uint64_t> damaged;  // versions with damaged images, found while filling
  std::uint64_t ended_bytes = 0;    // fetched for versions that are no longer partial
  // Of versions whose files are all here: why the last attempt to record them failed.
  std::map<std::uint64_t, std::pair<ErrorCode, std::string>> record_errors;
  bool is_untold = false;  // of the completer: one was recorded, and nobody was told
  std::jthread completer;  // last: it uses the members above
};

PartialImages::PartialImages(Store& store, History& history, PartialImagesOptions options)
    : state_(std::make_unique<State>(store, history, std::move(options))) {
  state_->completer = std::jthread([state = state_.get()] { state->complete_all(); });
}

PartialImages::~PartialImages() {
  stop();
  for (const auto& [version, filled] : list()) {
    // It cannot be evicted as an old version here: it is not recorded yet, and still counted.
    const bool is_recorded = filled->is_complete() && state_->try_to_complete(version);
    if (!is_recorded) state_->drop(version);
  }
}

void PartialImages::stop() {
  state_->stop_source.request_stop();
  if (state_->completer.joinable()) state_->completer.join();
  for (const auto& [version, filled] : list()) filled->stop();
}

std::shared_ptr<PartialVersion> PartialImages::find(std::uint64_t version) const {
  return state_->find(version);
}

std::map<std::uint64_t, std::shared_ptr<PartialVersion>> PartialImages::list() const {
  const std::lock_guard lock(state_->mutex);
  return state_->filling;
}

std::optional<Error> PartialImages::record_error(std::uint64_t version) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->record_errors.find(version);
  if (found == state_->record_errors.end()) return std::nullopt;
  return Error(found->second.first, found->second.second);
}

std::uint64_t PartialImages::fetched_bytes() const {
  std::unique_lock lock(state_->mutex);
  std::uint64_t sum = state_->ended_bytes;
  const auto filling = state_->filling;
  lock.unlock();
  for (const auto& [version, filled] : filling) sum += filled->progress().fetched_bytes;
  return sum;
}

// ---- begin ----

std::shared_ptr<PartialVersion> PartialImages::begin(std::uint64_t version, const Context& context,
                                                     VersionWatch* watch) {
  const auto making = state_->store.eviction().reserve(version, Eviction::Claim::in_use, context);
  if (auto found = find(version)) return found;
  if (state_->store.images().is_complete(version)) return nullptr;
  std::shared_ptr<PartialVersion> filled;
  {
    const ImagesLock lock = state_->store.images().lock_images(context);
    if (auto found = find(version)) return found;
    if (state_->store.images().is_complete(version)) return nullptr;
    lap(watch, &VersionTiming::wait);
    for (auto distrusted = state_->damaged_bases(); !filled;) {
      try {
        filled = state_->fill(version, distrusted, context, watch);
      } catch (const BaseDamaged& damaged) {
        if (!distrusted.insert(damaged.version()).second) throw;
        log_error(fmt::format("{}; not using it as a base", damaged.what()));
      }
    }
  }
  // Reports what happened before the version was in the list.
  state_->note(version);
  state_->tell();
  return filled;
}

/// nullptr: the base has just been evicted.
std::shared_ptr<PartialVersion> PartialImages::State::fill(
    std::uint64_t version, const std::set<std::uint64_t>& distrusted, const Context& making,
    VersionWatch* watch) {
  const auto wanted = history.get(version, making);
  const FileSet without = left_out(*history.layout(*wanted, making), options.only);
  std::vector<Base> bases_here = usable_bases(store, history, version, distrusted, making);
  auto patched = find_sound_patched_base(store, history, version, distrusted, making);
  if (patched) bases_here.push_back(std::move(*patched));
  Plan plan = make_plan(history, wanted, bases_here, making, {.without = without});
  auto base = reserve_base(store, plan, Eviction::Claim::in_use, making);
  lap(watch, &VersionTiming::plan);
  if (!base) return nullptr;
  // Counts against the store's size until there is room for the version built from it.
  const auto making_from = reserve_base(store, plan, Eviction::Claim::stays, making);
  const std::uint64_t linked = linked_bytes(plan, store.images().directory_of(ImagesHome::disk));
  store.evictor().evict_for_images(plan.version_bytes() - linked, plan.version_bytes());
  if (watch == nullptr) return make(std::move(plan), std::move(*base), nullptr, making);
  watch->lap(&VersionTiming::room);
  auto filled = make(std::move(plan), std::move(*base), watch->meter, making);
  note_origin(filled->plan(), watch->timing);  // not of a way that was left
  return filled;
}

std::shared_ptr<PartialVersion> PartialImages::State::make(Plan plan, Eviction::Reservation base,
                                                           std::shared_ptr<BuildMeter> meter,
                                                           const Context& making) {
  const std::uint64_t version = plan.version->number();
  const std::uint64_t bytes = plan.version_bytes();
  PartialVersionOptions how;
  how.directory = store.images().begin_images(version);
  how.spool = store.temporary_directory();
  how.threads = options.threads;
  how.files = all_but(*plan.layout, plan.without);
  how.coder = options.coder;
  how.meter = std::move(meter);
  how.tell_failures_for = options.tell_failures_for;
  how.plan_again = [this, version, without = plan.without, base_here = plan.base, replans = 0](
                       const Error& cause, const Context& asking) mutable -> std::optional<Plan> {
    if (!leaves_another_way(cause, base_here, replans)) return std::nullopt;
    std::span<const Base> from;
    if (base_here) from = {&*base_here, 1};
    return make_plan(history, history.get(version, asking), from, asking, {.without = without});
  };
  how.changed = [this, version] {
    if (note(version)) tell();
  };
  store.images().begin_partial(
      version, bytes,
      {.nobody_reads = [this, version] { return nobody_reads_files(version); },
       .remove = [this, version] { evict(version); }});
  try {
    auto filled = std::make_shared<PartialVersion>(std::move(plan), history.repository(),
                                                   std::move(how), making);
    const std::lock_guard lock(mutex);
    filling.emplace(version, filled);
    bases.emplace(version, std::move(base));
    return filled;
  } catch (...) {
    drop(version);
    throw;
  }
}

/// What is wrong on the way to a version that is being filled.  `base`: where the way begins, which
/// stays reserved; reset if it is damaged.  `replans`: times that an object was missing.
bool PartialImages::State::leaves_another_way(const Error& cause, std::optional<Base>& base,
                                              int& replans) {
  if (history.skips().leave_out_cause(cause)) return true;
  if (const auto* of_base = dynamic_cast<const BaseDamaged*>(&cause)) {
    if (!base) return false;
    log_error(fmt::format("{}; not using it as a base", of_base->what()));
    const std::lock_guard lock(mutex);
    damaged.insert(of_base->version());
    base.reset();
    return true;
  }
  if (dynamic_cast<const PatchDamaged*>(&cause) != nullptr)
    return std::exchange(base, {}).has_value();
  // gc may have removed it since that was planned.
  return cause.code() == ErrorCode::not_found && replans++ < kReplansMax;
}

/// Abandons a version and removes its files.
void PartialImages::State::drop(std::uint64_t version) {
  try {
    store.images().remove_images(version);
  } catch (const Error& error) {
    log_error(
        fmt::format("cannot remove incomplete files of version {}: {}", version, error.what()));
  }
  end(version);
}

/// Complete files may be open or mapped directly; the daemon knows who reads the others.
bool PartialImages::State::nobody_reads_files(std::uint64_t version) const {
  const auto filled = find(version);
  return filled && filled->nobody_reads(&store.eviction().refused_leases());
}

/// Evicts a partial version.  Stops its threads first, because none of them may be its last owner.
void PartialImages::State::evict(std::uint64_t version) {
  const auto filled = find(version);
  if (!filled) return;
  log_info(fmt::format("evicting version {}, which is only partly here, to make room", version));
  filled->stop();
  drop(version);
  if (options.gave_up) options.gave_up();
}

void PartialImages::State::end(std::uint64_t version) {
  store.images().end_partial(version);
  const auto filled = find(version);
  const std::uint64_t fetched = filled ? filled->progress().fetched_bytes : 0;
  const std::scoped_lock lock(error_mutex, mutex);
  ended_bytes += fetched;
  told.erase(version);
  filling.erase(version);
  bases.erase(version);
  record_errors.erase(version);
}

// ---- progress ----

/// Also called by threads of the PartialVersion. They must not become its last owner, because its
/// destructor joins them.
/// Returns: whether listeners must be told.  A completed file alone needs no call: openers check it
/// themselves.
bool PartialImages::State::note(std::uint64_t version) {
  const std::lock_guard telling(error_mutex);
  const PartialVersion* filled = nullptr;
  {
    const std::lock_guard lock(mutex);
    const auto found = filling.find(version);
    if (found == filling.end()) return false;
    filled = found->second.get();
  }
  bool has_changed = true;
  try {
    has_changed = note_error(version, *filled);
  } catch (const std::bad_alloc&) {
    // It may be the last call of all.
  }
  if (!filled->is_complete()) return has_changed;
  const std::lock_guard lock(mutex);
  has_whole = true;
  whole_changed.notify_all();
  return true;
}

/// Returns: whether the error has changed.
bool PartialImages::State::note_error(std::uint64_t version, const PartialVersion& filled) {
  const PartialProgress progress = filled.progress();
  const std::string message = progress.error ? progress.error->what() : "";
  Told& last = told[version];
  if (last.message == message) return false;
  const bool is_news = last.is_damaged != progress.is_damaged;
  last.message = message;
  last.is_damaged = progress.is_damaged;
  store.images().set_partial_error(version, progress.is_damaged ? progress.error : std::nullopt);
  if (message.empty() || (!is_news && Clock::now() < last.log_again)) return true;
  last.log_again = Clock::now() + kLogPause;
  log_warning(fmt::format("filling version {}: {}", version, message));
  return true;
}

/// Body of the thread that records versions whose files are all here.
void PartialImages::State::complete_all() {
  std::minstd_rand random{std::random_device()()};
  for (unsigned failures = 0; !context.stop.stop_requested();) {
    {
      std::unique_lock lock(mutex);
      const Clock::duration pause =
          failures == 0 ? kLookForWhole : retry_delay(kFirstRecordDelay, failures, random);
      whole_changed.wait_for(lock, context.stop, pause, [&] { return has_whole; });
      has_whole = false;
    }
    failures = complete_whole() ? 0 : failures + 1;
  }
}

/// Returns: false if something must be retried.
bool PartialImages::State::complete_whole() noexcept {
  bool all = true;
  const auto tell_of_it = [this] {
    if (is_untold) tell();
    is_untold = false;
  };
  try {
    tell_of_it();
    std::vector<std::uint64_t> versions;
    {
      const std::lock_guard lock(mutex);
      for (const auto& [version, filled] : filling) {
        if (filled->is_complete()) versions.push_back(version);
      }
    }
    for (const std::uint64_t version : versions) {
      all = complete(version) && all;
      tell_of_it();
    }
  } catch (const std::exception& error) {
    log_caught("recording versions that have come", error);
    return false;
  }
  return all;
}

/// Returns: false if it must be retried.
bool PartialImages::State::complete(std::uint64_t version) {
  try {
    const auto recording = store.eviction().reserve(version, Eviction::Claim::in_use, context);
    const ImagesLock lock = store.images().lock_images(context);
    if (!try_to_complete(version)) return false;
  } catch (const Error&) {
    return true;  // being stopped
  } catch (const std::exception&) {
    return false;  // no memory
  }
  is_untold = true;
  return true;
}

bool PartialImages::State::try_to_complete(std::uint64_t version) {
  const auto filled = find(version);
  // The version may have been evicted before it was recorded, and may now be partial again.
  if (!filled || !filled->is_complete()) return true;
  try {
    record(version, *filled);
  } catch (const Error& error) {
    note_record_error(version, error.code(), error.what());
    return false;
  } catch (const std::exception& error) {
    note_record_error(version, ErrorCode::no_memory, error.what());
    return false;
  }
  end(version);
  // A callback in one of its threads may hold it. Join them here, so that none of them becomes the
  // last owner and waits for itself.
  filled->stop();
  return true;
}

/// Who waits for the version is told: nobody knows when there will be room.
void PartialImages::State::note_record_error(std::uint64_t version, ErrorCode code,
                                             const char* why) {
  const std::string message =
      fmt::format("version {} is complete, but cannot be recorded: {}; retrying", version, why);
  std::pair<ErrorCode, std::string> noted(code, message);
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(record_errors[version], std::move(noted)).second == message) return;
  }
  log_warning(message);
  store.images().set_partial_error(version, Error(code, message));
}

void PartialImages::State::record(std::uint64_t version, const PartialVersion& filled) {
  const Plan& plan = filled.plan();
  std::vector<std::uint64_t> sizes;
  for (const auto& file : files_of(plan.version->manifest, *plan.layout)) {
    sizes.push_back(file.size_bytes);
  }
  store.images().complete_images(version, sizes, plan.hashes,
                                 by_path(plan.version->manifest, *plan.layout, plan.without));
}

}  // namespace weightfs
