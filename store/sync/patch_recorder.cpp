#include "store/sync/patch_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/database/sorted_file.hpp"
#include "store/format/checkpoint.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/image_files.hpp"
#include "store/materialize/take_patches.hpp"
#include "store/os/file.hpp"
#include "store/os/priority.hpp"
#include "store/patches/fold_spans.hpp"
#include "store/patches/patch_reader.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kHistoryVersions = 64;  // that can be reached one by one

}  // namespace

PatchRecorder::PatchRecorder(Store& store, History& history, std::function<void()> recorded)
    : store_(store),
      history_(history),
      recorded_(std::move(recorded)),
      guarding_(store.eviction().add_guard(*this)) {
  store_.fresh_patches().add_taker();
}

PatchRecorder::~PatchRecorder() {
  guarding_.end();
  stop();
  store_.fresh_patches().remove_taker();
}

void PatchRecorder::start() {
  if (thread_.joinable()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void PatchRecorder::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void PatchRecorder::wake() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  changed_.notify_all();
}

// ---- the thread ----

void PatchRecorder::run(const std::stop_token& stop) {
  take_lowest_priority();
  const Context context{stop, Clock::time_point::max()};
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [this] { return is_woken_; });
      is_woken_ = false;
    }
    if (!stop.stop_requested()) run_once(context);
  }
}

/// What fails is tried again when the next version has come.
void PatchRecorder::run_once(const Context& context) {
  std::string failed;
  try {
    if (record_if_due(context) && recorded_) recorded_();
  } catch (const std::exception& error) {
    if (context.stop.stop_requested()) return;
    failed = error.what();
    if (logged_ != failed) log_warning(fmt::format("the history is not kept: {}", failed));
  }
  logged_ = failed;
  const std::lock_guard lock(mutex_);
  error_ = std::move(failed);
}

bool PatchRecorder::record_if_due(const Context& context) {
  PatchReach reach = find_patch_reach(store_, history_, context);
  note(reach);
  bool is_recorded = false;
  while (reach.start != 0 && reach.start < reach.newest && reach.reached < reach.newest) {
    if (!try_to_record(reach, context)) break;
    is_recorded = true;
    reach = find_patch_reach(store_, history_, context);  // others may have come
    note(reach);
  }
  if (is_recorded) fold(context);
  if (!is_recorded) repair_small_files(reach, context);
  return is_recorded;
}

/// What could not be taken is not kept any longer: the next span begins further back.
bool PatchRecorder::try_to_record(const PatchReach& reach, const Context& context) {
  const auto let_go = [&] {
    PatchReach known = reach;
    known.start = 0;
    note(known);
  };
  try {
    const bool is_recorded = record(reach, context);
    if (!is_recorded) let_go();
    return is_recorded;
  } catch (...) {
    let_go();
    throw;
  }
}

/// Returns: false if patches cannot lead over it, or the images changed meanwhile.
bool PatchRecorder::record(const PatchReach& reach, const Context& context) {
  if (record_fresh(reach, context)) return true;
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
  store_.evictor().evict_for_free_bytes(kSortedFileBytesMax);
  PatchFiles files = take_patches(store_.patches(), *ends, from, to, context);
  const bool are_same = images.generation(reach.start) == generation_before &&
                        images.generation(reach.newest) == generation_after;
  if (!are_same) return false;
  const std::set<Sha256> small_files = keep_small_files(to, reach.base, context);
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
  store_.evictor().evict_for_free_bytes(kSortedFileBytesMax);
  std::optional<PatchFiles> files = write_patches(store_.patches(), *ends, *fresh, context);
  if (!files) return false;
  const std::uint64_t bytes = files->size_bytes, chunks = files->chunk_count;
  // The small files of a version that went meanwhile are kept with the next one.
  const std::uint64_t last = ends->last.version;
  const auto after = store_.eviction().reserve(last, Eviction::Claim::in_use, context);
  std::optional<std::set<Sha256>> small_files;
  if (store_.images().generation(last) != 0) {
    small_files = keep_small_files(base_of(store_, history_, last, context), reach.base, context);
  }
  store_.patches().install(*ends, std::move(*files));
  store_.fresh_patches().note_installed(*ends, true);
  if (small_files) store_.small_files().keep_only(*small_files);
  log_debug(fmt::format("patches from versions {}, noted while it was made: {} chunks, {}",
                        to_string(ends->span()), chunks, human_bytes(bytes)));
  return true;
}

/// Those of the newest version that the base does not have.
std::set<Sha256> PatchRecorder::keep_small_files(const Base& newest, std::uint64_t base,
                                                 const Context& context) {
  const auto& there = history_.get(base, context)->manifest.blobs;
  SmallFiles& kept = store_.small_files();
  std::set<Sha256> wanted;
  for (const BlobRef& blob : newest.version->manifest.blobs) {
    const bool is_there = std::any_of(there.begin(), there.end(), [&](const BlobRef& old) {
      return old.path == blob.path && old.sha256 == blob.sha256;
    });
    if (is_there) continue;
    wanted.insert(blob.sha256);
    if (hash_of_small_file(kept.path_of(blob.sha256), blob.size_bytes) == blob.sha256) continue;
    const std::string bytes = read_file(newest.directory / blob.path, kBlobBytesMax);
    if (sha256(as_bytes(bytes)) == blob.sha256) kept.keep(blob.sha256, bytes);
  }
  return wanted;
}

/// What was damaged or lost is kept again while its version is here.
void PatchRecorder::repair_small_files(const PatchReach& reach, const Context& context) {
  if (reach.base == 0 || reach.newest == reach.base || reach.reached != reach.newest) return;
  const auto newest = store_.eviction().reserve(reach.newest, Eviction::Claim::in_use, context);
  if (store_.images().generation(reach.newest) == 0) return;
  static_cast<void>(
      keep_small_files(base_of(store_, history_, reach.newest, context), reach.base, context));
}

void PatchRecorder::fold(const Context& context) {
  const std::uint64_t base = store_.images().base_version();
  FoldLimits limits;
  limits.history = kHistoryVersions;
  limits.newest_bytes = limits.patches_bytes = store_.images().newest_bytes();
  if (base != 0) limits.base = {base, history_.get(base, context)->manifest_sha256};
  try {
    static_cast<void>(fold_all(store_.patches(), limits, context));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt) throw;
    remove_damaged(context);
    throw;
  }
}

/// So that the rest can be folded, and nobody plans with what cannot be read.
void PatchRecorder::remove_damaged(const Context& context) {
  for (const SpanInfo& span : store_.patches().list()) {
    try {
      PatchCursor cursor(store_.patches(), span, {});
      while (cursor.place()) {
        context.check("looking for damaged patches");
        static_cast<void>(cursor.take());
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) continue;  // removed meanwhile
      if (error.code() != ErrorCode::corrupt) throw;
      log_error(fmt::format("{}; the patches from versions {} are removed", error.what(),
                            to_string(span.span())));
      static_cast<void>(store_.patches().remove(span.span()));
    }
  }
}

void PatchRecorder::note(const PatchReach& reach) {
  const std::lock_guard lock(mutex_);
  reach_ = reach;
}

// ---- for others ----

/// The version from which the next patches are taken, as far as the thread knows.
bool PatchRecorder::keeps(std::uint64_t version) {
  std::uint64_t start = 0;
  {
    const std::lock_guard lock(mutex_);
    start = reach_.start;
  }
  if (version != start) return false;
  const std::vector<std::uint64_t> here = store_.images().versions_in_memory();
  return !here.empty() && here.back() > start && here.back() - start <= kBacklogMax;
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
  const std::lock_guard lock(mutex_);
  history.recorded = reach_.reached;
  history.backlog = newest - std::min(newest, reach_.reached);
  history.path_bytes = reach_.path_bytes;
  history.error = error_;
  return history;
}

}  // namespace weightfs
