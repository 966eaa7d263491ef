// PatchRecorder: keeps the history of a store whose images are in memory (ImageTable::use_memory),
// in a thread of the lowest priority: takes the patches from the last version that it recorded to
// the newest one, when that is shown, and folds patches (store/patches/fold_spans.hpp).
//
//     base ======== 7 -> 8 -> 9 ---> 12          9 was the last one here whose patches were taken;
//     (disk)        spans of level one           10 and 11 went before their turn
//
// The small files of the newest version that the base does not have are kept on the disk too
// (store/local/small_files.hpp).
//
// So patches lead from the base, which is on the disk, to the newest version, and a restart makes
// it of both (store/materialize/patched_base.hpp).
//
// A span begins at the newest version here to which patches lead from the base, at worst the base
// itself.  That version is kept in memory until the patches from it are taken: this is a
// VersionGuard.  It is let go when kBacklogMax newer versions are here and still another one comes.
//
// Threads: all calls may run in parallel, record_if_due() one at a time.  `recorded` runs in the
// thread, without locks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

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

namespace weightfs {

/// Of the patches that a store has.
struct PatchHistory {
  struct Level {
    PatchLevel level{};
    std::uint64_t spans = 0, bytes = 0;
    std::uint64_t first = 0, last = 0;  // versions; both 0: no spans
  };
  std::vector<Level> levels;     // all, ascending
  PatchCounters written;         // since the store was made
  FreshCounters counted;         // how spans of level one came about
  std::uint64_t recorded = 0;    // newest version to which patches lead from the base; 0: none
  std::uint64_t backlog = 0;     // versions since
  std::uint64_t path_bytes = 0;  // of the patches from the base to `recorded`
  std::string error;             // of the last try; "": it succeeded
};

class PatchRecorder final : public VersionGuard {
 public:
  static constexpr std::uint64_t kBacklogMax = 2;  // versions

  /// Keeps the references.  `recorded`: called when patches were taken; may be empty.
  /// Requires: the store keeps images in memory.
  PatchRecorder(Store& store, History& history, std::function<void()> recorded = {});
  ~PatchRecorder() override;  // stops

  void start();
  /// Waits for a chunk, or a page of patches, at most; what is not whole is removed.
  void stop();

  /// There may be a newer version.  Quick.
  void wake();

  /// What the thread does when it is woken.  Requires: the thread does not run.
  /// Returns: whether a span was recorded.
  /// Throws Error: no_space, io, corrupt; cancelled, timed_out.
  bool record_if_due(const Context& context);

  [[nodiscard]] PatchHistory status() const;

  [[nodiscard]] bool keeps(std::uint64_t version) override;

 private:
  void run(const std::stop_token& stop);
  void run_once(const Context& context);
  bool try_to_record(const PatchReach& reach, const Context& context);
  bool record(const PatchReach& reach, const Context& context);
  bool record_fresh(const PatchReach& reach, const Context& context);
  std::set<Sha256> keep_small_files(const Base& newest, std::uint64_t base, const Context& context);
  void repair_small_files(const PatchReach& reach, const Context& context);
  void fold(const Context& context);
  void remove_damaged(const Context& context);
  void note(const PatchReach& reach);

  Store& store_;
  History& history_;
  const std::function<void()> recorded_;
  mutable RankedMutex mutex_{LockRank::leaf, "PatchRecorder::mutex_"};  // guards the next four
  std::condition_variable_any changed_;
  bool is_woken_ = false;
  PatchReach reach_;
  std::string error_;
  std::string logged_;  // the last error; used by the thread only
  std::jthread thread_;
  Eviction::Guarding guarding_;  // last: no eviction asks what is gone
};

}  // namespace weightfs
