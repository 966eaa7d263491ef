// PatchRecorder: keeps the history of a store, in a thread of the lowest priority: takes the
// patches from the last version that it recorded to the newest one, when that is shown, and folds
// patches (store/patches/fold_spans.hpp).
//
//     images on the disk     4 <- 5 <- 6 <---- 9 <- 10 ==      back from the newest version
//     images in memory       == 4 -> 5 -> 6 ----> 9 -> 10      forwards from the base (disk)
//
//     ==  images on the disk    ->  spans of level one    7, 8  went before their turn
//
// So versions whose images are gone are made of those that are here, without the bucket
// (store/materialize/patched_base.hpp): old ones of images on the disk, which are no other copy of
// them, and after a restart the newest one of the base of images in memory.  The small files that
// they need are kept too (store/sync/history_files.hpp).
//
// A span begins at the newest version here to which patches lead (store/sync/patch_reach.hpp), at
// first at any that is here, and with images in memory at worst at the base.  That version is kept
// until the patches from it are taken: this is a VersionGuard.  It is let go when kBacklogMax newer
// versions are here and still another one comes.
//
// With images on the disk nothing else has to go for patches: where the store's limit, or the file
// system, has no room for them, the oldest go, and if that is not enough none are taken
// (Evictor::patches_max).  Nor does a version wait for room that is taken only by what patches are
// being taken from: then none are (note_coming).
//
// Patches that lead nowhere are removed (store/sync/patch_sweep.hpp).
//
// Threads: all calls may run in parallel, record_if_due() one at a time.  `recorded` runs in the
// thread, without locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/eviction.hpp"
#include "store/local/store.hpp"
#include "store/local/version_guard.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/plan.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/patches/patch_table.hpp"
#include "store/sync/patch_reach.hpp"
#include "store/threads/background.hpp"
#include "store/threads/woken_thread.hpp"

namespace weightfs {

/// Of the patches that a store has.
struct PatchHistory {
  struct Level {
    PatchLevel level{};
    std::uint64_t spans = 0, bytes = 0;
    std::uint64_t first = 0, last = 0;  // versions; both 0: no spans
  };
  std::vector<Level> levels;               // all, ascending
  std::uint64_t bytes = 0;                 // of all, those that are being folded too
  std::optional<std::uint64_t> bytes_max;  // what they may have; nullopt: images are in memory
  PatchCounters written;                   // since the store was made
  FreshCounters counted;                   // how spans of level one came about
  std::uint64_t first = 0;       // oldest version that is made without the bucket; 0: none
  std::uint64_t versions = 0;    // that are
  std::uint64_t recorded = 0;    // newest version to which patches lead; 0: none
  std::uint64_t backlog = 0;     // versions since
  std::uint64_t path_bytes = 0;  // of the patches from the base of images in memory to `recorded`
  std::string off;               // why this host takes none; "": it does
  std::string error;             // of the last try; "": it succeeded
};

inline constexpr std::uint64_t kHistoryVersions = 64;

struct PatchRecorderOptions {
  /// Newest versions that can be reached one by one, older ones by 64.  0: with images on the disk
  /// there is no history, and what there was is removed; with images in memory the base leads to
  /// the newest version, and no more.
  std::uint64_t history = kHistoryVersions;
  bool keeps_a_part = false;            // of the files: no patches are taken
  std::function<void()> recorded = {};  // called when patches were taken; may be empty
  kernels::SharedCoder coder = kernels::make_cpu_coder();  // adds patches up
};

class PatchRecorder final : public VersionGuard {
 public:
  static constexpr std::uint64_t kBacklogMax = 2;  // versions

  /// Keeps the references.
  PatchRecorder(Store& store, History& history, PatchRecorderOptions options = {});
  ~PatchRecorder() override;  // stops

  void start() { thread_.start(); }
  /// Waits for a chunk, or a page of patches, at most; what is not whole is removed.
  void stop() { thread_.stop(); }

  /// There may be a newer version.  Quick.
  void wake() { thread_.wake(); }

  /// Another version is being brought.  Quick.
  void note_coming();

  /// What the thread does when it is woken.  Requires: the thread does not run.
  /// Returns: whether a span was recorded.
  /// Throws Error: no_space, io, corrupt; cancelled, timed_out.
  bool record_if_due(const Context& context);

  /// The same for who does not stay: no images are compared, so it takes what was noted while
  /// versions were made, or nothing.
  bool record_noted(const Context& context);

  [[nodiscard]] PatchHistory status() const;

  [[nodiscard]] bool keeps(std::uint64_t version) override;

 private:
  class Taking;

  enum class Source { notes, notes_or_images };

  bool record_from(Source source, const Context& context);
  PatchReach find_reach(const Context& context);
  bool try_to_record(Source source, const PatchReach& reach, const Context& context);
  bool record(Source source, const PatchReach& reach, const Context& context);
  bool record_fresh(const PatchReach& reach, const Context& context);
  std::set<Sha256> keep_files_of(const SpanEnds& ends, const PatchReach& reach,
                                 const Context& context);
  PatchFiles take(const SpanEnds& ends, const Base& from, const Base& to, const Context& context);
  [[nodiscard]] std::uint64_t make_room();
  [[nodiscard]] bool is_on_disk() const noexcept { return store_.images().memory() == nullptr; }
  [[nodiscard]] bool has_room_for_version() const;
  [[nodiscard]] std::optional<std::uint64_t> find_bytes_max() const;  // of PatchHistory
  bool remove_unwanted(const Context& context);
  void drop(const BaseDamaged& damaged);
  [[nodiscard]] std::vector<std::uint64_t> surest_images(const PatchReach& reach) const;
  void repair_small_files(const PatchReach& reach, const Context& context);
  void fold(const Context& context);
  void note(const PatchReach& reach);
  void tell();

  Store& store_;
  History& history_;
  const PatchRecorderOptions options_;
  const std::string off_;       // PatchHistory::off
  DamagedImages damaged_;       // used by record_if_due() only, as the next one
  std::uint64_t too_many_ = 0;  // patches lead to this version; 0: to none
  mutable RankedMutex mutex_{LockRank::leaf, "PatchRecorder::mutex_"};  // guards the next three
  PatchReach reach_;
  PatchReach told_;               // in the status: once all is folded
  OwnContext* taking_ = nullptr;  // while patches are taken
  WokenThread thread_;
  Eviction::Guarding guarding_;  // last: no eviction asks what is gone
};

}  // namespace weightfs
