#include "store/sync/patch_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/database/sorted_file.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/take_patches.hpp"
#include "store/os/priority.hpp"
#include "store/patches/fold_spans.hpp"
#include "store/sync/history_files.hpp"
#include "store/sync/patch_sweep.hpp"

namespace weightfs {
namespace {

std::string why_off(const Store& store, const PatchRecorderOptions& options) {
  if (options.keeps_a_part) return "this host keeps a part of the files (--only)";
  const bool is_unwanted = options.history == 0 && store.images().memory() == nullptr;
  return is_unwanted ? "--history 0" : "";
}

}  // namespace

/// While it lives, patches are being taken.
class PatchRecorder::Taking {
 public:
  Taking(PatchRecorder& recorder, OwnContext& own) : recorder_(recorder) { note(&own); }
  ~Taking() { note(nullptr); }
  Taking(const Taking&) = delete;
  Taking& operator=(const Taking&) = delete;

 private:
  void note(OwnContext* own) {
    const std::lock_guard lock(recorder_.mutex_);
    recorder_.taking_ = own;
  }

  PatchRecorder& recorder_;
};

PatchRecorder::PatchRecorder(Store& store, History& history, PatchRecorderOptions options)
    : store_(store),
      history_(history),
      options_(std::move(options)),
      off_(why_off(store, options_)),
      thread_({"the history is not kept: {}", take_lowest_priority},
              [this](const Context& context, bool) {
                if (record_if_due(context) && options_.recorded) options_.recorded();
                return WokenThread::kUntilWoken;
              }),
      guarding_(store.eviction().add_guard(*this)) {
  if (off_.empty()) store_.fresh_patches().add_taker();
}

PatchRecorder::~PatchRecorder() {
  guarding_.end();
  stop();
  if (off_.empty()) store_.fresh_patches().remove_taker();
}

bool PatchRecorder::record_if_due(const Context& context) {
  return record_from(Source::notes_or_images, context);
}

bool PatchRecorder::record_noted(const Context& context) {
  return record_from(Source::notes, context);
}

bool PatchRecorder::record_from(Source source, const Context& context) {
  PatchReach reach = find_reach(context);
  bool is_recorded = false;
  while (reach.is_due() && off_.empty() && reach.newest != too_many_) {
    if (!try_to_record(source, reach, context)) break;
    is_recorded = true;
    reach = find_reach(context);  // others may have come
  }
  if (!is_recorded) repair_small_files(reach, context);
  const bool has_swept = remove_unwanted(context);
  if (is_recorded || has_swept) fold(context);
  if (has_swept) find_reach(context);
  // There was no room for as much as the last ones.
  if (is_recorded && find_reach(context).is_due()) too_many_ = reach.newest;
  tell();
  return is_recorded;
}

/// Returns: whether there were any.
bool PatchRecorder::remove_unwanted(const Context& context) {
  if (options_.history > 0 || !is_on_disk())
    return remove_stray_patches(store_, history_, context) > 0;
  if (store_.patches().size_bytes() == 0 && store_.patches().list().empty()) return false;
  static_cast<void>(store_.patches().remove_if([](const SpanEnds&, bool) { return true; }));
  store_.small_files().keep_only({});
  return true;
}

PatchReach PatchRecorder::find_reach(const Context& context) {
  const PatchReach reach = find_patch_reach(store_, history_, context, damaged_);
  note(reach);
  return reach;
}

/// What could not be taken is not kept any longer: the next span begins further back.
bool PatchRecorder::try_to_record(Source source, const PatchReach& reach, const Context& context) {
  const auto let_go = [&] {
    PatchReach known = reach;
    known.start = 0;
    note(known);
  };
  try {
    const bool is_recorded = record(source, reach, context);
    if (!is_recorded) let_go();
    return is_recorded;
  } catch (const BaseDamaged& damaged) {
    let_go();
    drop(damaged);
    throw;
  } catch (const TooManyPatches&) {
    let_go();
    too_many_ = reach.newest;
    throw;
  } catch (...) {
    let_go();
    throw;
  }
}

/// Returns: false if patches cannot lead over it, or the images changed meanwhile.
bool PatchRecorder::record(Source source, const PatchReach& reach, const Context& context) {
  if (record_fresh(reach, context)) return true;
  if (source == Source::notes) return false;
  const ImageTable& images = store_.images();
  const auto before = store_.eviction().reserve(reach.start, Eviction::Claim::in_use, context);
  const auto after = store_.eviction().reserve(reach.newest, Eviction::Claim::in_use, context);
  const std::uint64_t generation_before = images.generation(reach.start);
  const std::uint64_t generation_after = images.generation(reach.newest);
  if (generation_before == 0 || generation_after == 0) return false;
  const Base from = base_of(store_, history_, reach.start, context);
  const Base to = base_of(store_, history_, reach.newest, context);
  const std::optional<SpanEnds> ends = span_between(from, to);
  if (!ends) return false;
  PatchFiles files = take(*ends, from, to, context);
  const bool are_same = images.generation(reach.start) == generation_before &&
                        images.generation(reach.newest) == generation_after;
  if (!are_same) return false;
  const std::set<Sha256> small_files =
      keep_history_files(store_, history_, surest_images(reach), {to, from}, context);
  const std::uint64_t bytes = files.size_bytes, chunks = files.chunk_count;
  store_.patches().install(*ends, std::move(files));
  store_.fresh_patches().note_installed(*ends, false);
  store_.small_files().keep_only(small_files);  // until now a restart may need the others
  log_debug(fmt::format("patches from versions {}: {} chunks, {}", to_string(ends->span()), chunks,
                        human_bytes(bytes)));
  return true;
}

/// Of what was noted while a version was made: that needs no images, so it does not matter whether
/// they are still here, or were made anew.
bool PatchRecorder::record_fresh(const PatchReach& reach, const Context& context) {
  const PatchVersion first{reach.reached, history_.get(reach.reached, context)->manifest_sha256};
  const std::unique_ptr<FreshSpan> fresh = store_.fresh_patches().take(first);
  const std::optional<SpanEnds> ends = fresh ? fresh->find_ends() : std::nullopt;
  if (!ends) return false;
  const std::uint64_t bytes_max = make_room();
  std::optional<PatchFiles> files = write_patches(store_.patches(), *ends, *fresh, context);
  if (!files) return false;
  if (files->size_bytes > bytes_max) throw TooManyPatches(bytes_max);
  const std::uint64_t bytes = files->size_bytes, chunks = files->chunk_count;
  const std::set<Sha256> small_files = keep_files_of(*ends, reach, context);
  store_.patches().install(*ends, std::move(*files));
  store_.fresh_patches().note_installed(*ends, true);
  store_.small_files().keep_only(small_files);
  log_debug(fmt::format("patches from versions {}, noted while it was made: {} chunks, {}",
                        to_string(ends->span()), chunks, human_bytes(bytes)));
  return true;
}

/// As far as the two versions are still here.
std::set<Sha256> PatchRecorder::keep_files_of(const SpanEnds& ends, const PatchReach& reach,
                                              const Context& context) {
  std::vector<Eviction::Reservation> reserved;
  std::vector<Base> sources;
  for (const std::uint64_t number : {ends.last.version, ends.first.version}) {
    reserved.push_back(store_.eviction().reserve(number, Eviction::Claim::in_use, context));
    if (store_.images().generation(number) == 0) continue;
    sources.push_back(base_of(store_, history_, number, context));
  }
  return keep_history_files(store_, history_, surest_images(reach), sources, context);
}

PatchFiles PatchRecorder::take(const SpanEnds& ends, const Base& from, const Base& to,
                               const Context& context) {
  const std::uint64_t bytes_max = make_room();
  OwnContext own(context);
  const Taking taking(*this, own);
  try {
    return take_patches(store_.patches(), ends, from, to, own.get(), bytes_max);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::cancelled || context.stop.stop_requested()) throw;
    throw Error(ErrorCode::no_space,
                "its file system has no room for another version beside those that patches are "
                "taken from");
  }
}

/// Returns: what patches may take.
std::uint64_t PatchRecorder::make_room() {
  Evictor& evictor = store_.evictor();
  if (!is_on_disk()) {
    evictor.evict_for_free_bytes(kSortedFileBytesMax);
    return kSizeBytesMax;
  }
  if (evictor.has_free_bytes(kSortedFileBytesMax))
    return std::min(evictor.patches_max(), evictor.spare_bytes());
  throw Error(ErrorCode::no_space,
              fmt::format("its file system has no room for {} of patches beside what must stay "
                          "free (--min-free)",
                          human_bytes(kSortedFileBytesMax)));
}

/// As whoever finds damage while a version is made.
void PatchRecorder::drop(const BaseDamaged& damaged) {
  const std::uint64_t number = damaged.version();
  damaged_[number] = store_.images().generation(number);
  log_error(fmt::format("{}; no patches are taken from it", damaged.what()));
  static_cast<void>(store_.evictor().discard_damaged(number));
}

/// Those with which a version is made of patches, if the disk keeps what it has.
std::vector<std::uint64_t> PatchRecorder::surest_images(const PatchReach& reach) const {
  if (reach.base != 0) return {};  // it will be another one
  return store_.images().complete_versions();
}

/// What was damaged or lost is kept again while its version is here.
void PatchRecorder::repair_small_files(const PatchReach& reach, const Context& context) {
  const bool is_recorded = reach.versions > 1 && reach.reached >= reach.newest;
  if (!is_recorded || reach.newest == reach.base) return;
  const auto newest = store_.eviction().reserve(reach.newest, Eviction::Claim::in_use, context);
  if (store_.images().generation(reach.newest) == 0) return;
  static_cast<void>(keep_history_files(store_, history_, surest_images(reach),
                                       {base_of(store_, history_, reach.newest, context)},
                                       context));
}

void PatchRecorder::fold(const Context& context) {
  const std::uint64_t base = store_.images().base_version();
  FoldLimits limits;
  limits.history = options_.history;
  limits.newest_bytes = limits.patches_bytes = store_.images().newest_bytes();
  if (is_on_disk()) limits.patches_bytes = store_.evictor().patches_max();
  if (options_.history == 0) limits.patches_bytes = 0;
  if (base != 0) limits.base = {base, history_.get(base, context)->manifest_sha256};
  try {
    static_cast<void>(fold_all(store_.patches(), limits, context, options_.coder));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    remove_damaged_patches(store_.patches(), context);
    throw;
  }
}

void PatchRecorder::note(const PatchReach& reach) {
  const std::lock_guard lock(mutex_);
  reach_ = reach;
}

void PatchRecorder::tell() {
  const std::lock_guard lock(mutex_);
  told_ = reach_;
}

// ---- for others ----

void PatchRecorder::note_coming() {
  if (!is_on_disk() || has_room_for_version()) return;
  const std::lock_guard lock(mutex_);
  if (taking_ != nullptr) taking_->stop();
}

bool PatchRecorder::has_room_for_version() const {
  return store_.evictor().has_free_bytes(store_.images().newest_bytes());
}

/// The version from which the next patches are taken, as far as the thread knows.
bool PatchRecorder::keeps(std::uint64_t version) {
  std::uint64_t start = 0;
  {
    const std::lock_guard lock(mutex_);
    start = reach_.start;
  }
  if (version != start || !off_.empty()) return false;
  if (is_on_disk() && !has_room_for_version()) return false;
  const ImageTable& images = store_.images();
  const std::vector<std::uint64_t> here =
      is_on_disk() ? images.complete_versions() : images.versions_in_memory();
  return !here.empty() && here.back() > start && here.back() - start <= kBacklogMax;
}

std::optional<std::uint64_t> PatchRecorder::find_bytes_max() const {
  if (!is_on_disk()) return std::nullopt;
  try {
    return store_.evictor().patches_max();
  } catch (const Error&) {  // it cannot be measured at this moment
    return std::nullopt;
  }
}

PatchHistory PatchRecorder::status() const {
  PatchHistory history;
  for (const PatchLevel level :
       {PatchLevel::one, PatchLevel::eight, PatchLevel::sixty_four, PatchLevel::cumulative}) {
    history.levels.push_back({level});
  }
  for (const SpanInfo& span : store_.patches().list()) {
    PatchHistory::Level& level = history.levels[static_cast<std::size_t>(span.ends.level)];
    level.first =
        level.spans == 0 ? span.ends.first.version : std::min(level.first, span.ends.first.version);
    level.last = std::max(level.last, span.ends.last.version);
    level.spans++;
    level.bytes += span.size_bytes;
  }
  history.written = store_.patches().counters();
  history.counted = store_.fresh_patches().counters();
  const std::vector<std::uint64_t> here = store_.images().complete_versions();
  const std::uint64_t newest = here.empty() ? 0 : here.back();
  history.bytes = store_.patches().size_bytes();
  history.bytes_max = find_bytes_max();
  history.off = off_;
  history.error = thread_.error();
  const std::lock_guard lock(mutex_);
  history.first = told_.first;
  history.versions = told_.versions;
  history.recorded = told_.reached;
  history.path_bytes = told_.path_bytes;
  if (told_.reached != 0 && off_.empty())
    history.backlog = newest - std::min(newest, told_.reached);
  return history;
}

}  // namespace weightfs
