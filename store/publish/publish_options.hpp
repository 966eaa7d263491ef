// Publish options: what a publish is given, beside the repository and the store.
//
// Threads: a value; its functions are called by the publish, one at a time unless they say
// otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/format/hub_base.hpp"
#include "store/format/pack.hpp"
#include "store/parts/part_set.hpp"
#include "store/publish/snapshot_choice.hpp"
#include "store/publish/version_wishes.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs {

class PreEncoded;

inline constexpr std::chrono::milliseconds kPartWait{600'000};

struct PublishOptions {
  std::filesystem::path directory;  // not read for a rollback
  /// With `rebase`, a publish that loses a race, or whose fence does not hold, takes the newest
  /// version as its parent and codes again, kRebaseTries times in all, after growing random pauses.
  VersionWishes wishes = {};
  /// Which versions get a snapshot that is not wished for; a rollback gets none.
  SnapshotPolicy snapshots = {};
  /// The version gets a snapshot whose files lie there and are not uploaded, after a proof that
  /// they are those of `directory` (store/publish/hub_proof.hpp).  Not for a rollback.
  std::optional<HubBase> base = {};
  /// For publish_part(): which part of the version `directory` has.
  PartChoice part = {};
  /// How long a part that is published waits for the others; 0: not at all.
  std::chrono::milliseconds part_wait = kPartWait;
  /// Called while the version is waited for, once for each change of which other parts are missing.
  /// An empty list: all have come by now, and the version is about to be completed.
  std::function<void(const std::vector<unsigned>& missing)> waiting = {};

  unsigned threads = 0;                             // 0: work_threads()
  std::uint64_t pack_bytes = kPackDataBytesTarget;  // a pack with so much data is full
  kernels::SharedCoder coder = kernels::make_cpu_coder();

  /// 32 hex digits for the manifest; empty: random ones.  A caller that records them before the
  /// call can find out after a crash, with find_nonce(), whether the version exists.  They may be
  /// used again for the same checkpoint: uploads are named by their bytes, and an existing manifest
  /// with this nonce counts as this publish's own.
  std::string nonce = {};

  /// Keep uploads after an Error, unless the number is taken: the checkpoint will be published
  /// again, under the same names.
  bool keeps_uploads = false;

  /// The version that must be the newest when the publish begins, 0: none may exist.  If it is not,
  /// that is a conflict: at once if this host knows a newer one, else when the bucket has answered,
  /// while the files are coded; a rebase then takes the newest version as parent.  nullopt: any.
  std::optional<std::uint64_t> fence_parent = {};

  /// An earlier try with this nonce may have sent the manifest of this version, or of a later one,
  /// and it may still arrive.  If it has, the publish throws CommitUnknown: that is neither another
  /// writer's version nor a parent.  0: there was none.  As long as it may have made the version
  /// that is to be made, missing shards and weights are no error: who sent it did not look.
  std::uint64_t may_exist_from = 0;

  /// Called right before a manifest is written, once per try; must make a durable write to the
  /// store.  If it throws, the publish ends with nothing committed.  (`at` is for tests.)
  std::function<void(std::uint64_t version)> committing = {};

  /// Takes ImageTable::lock_images() before `committing` and returns it in the result, so that
  /// nothing fetches the version before the caller has adopted it (store/materialize/adopt.hpp).
  bool lock_images = false;

  /// After the commit the files are kept as images in the store, and those of other versions are
  /// removed (store/publish/keep_images.hpp).  A failure of that is only logged.  Not with
  /// `lock_images`.
  bool keeps_images = false;

  /// Gives results coded earlier (store/publish/pre_encoder.hpp), or nullptr; empty: there are
  /// none. Called once per try, while the bucket is asked about the parent; may wait, and throw.  A
  /// file's result is used if path, inode, size, modification time, header and parent are the same
  /// as when it was coded.
  std::function<std::shared_ptr<const PreEncoded>(const Context& context)> early = {};

  /// Gets the phases seal to commit, and adopt with `keeps_images`; nullptr: nobody asks.
  HandOverWatch* watch = nullptr;

  /// What was uploaded early longer ago is looked for in the bucket before a manifest names it:
  /// until then it passes for garbage.
  std::chrono::milliseconds early_trust{1'000};

  /// Called at named points; those of a part are in publish_part.hpp.  Else ("scanned", "parent",
  /// "pack-ahead", "diffed", "pack", "blobs", "layout", "before-commit", "committed", "kept"),
  /// where tests kill the process.  "parent" is reached only if a file is coded; "pack-ahead" by
  /// another thread, when a pack was uploaded while others were being coded.
  std::function<void(std::string_view point)> at;
};

}  // namespace weightfs
