// Make skip: codes the change from a version to a later one over several, and adds it to the bucket
// (store/format/skip_record.hpp).
//
//     from      the base: images here, or what the store's patches make of others
//     to        made likewise, or of `from` and packs of the bucket (store/publish/old_version.hpp)
//     code      as any delta (store/coding/delta_coder.hpp): what has equal hashes is not read
//     upload    the packs, under names that a later attempt of this store uses again
//     record    by put-if-absent
//
// Neither version is written as files where images and patches lead to `from`.  If it is killed at
// any point it leaves packs without a record, and the next attempt goes on with them.
//
// Threads: one call runs its own threads; all calls may run in parallel, also of several hosts: the
// first record stays.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/base/version_pair.hpp"
#include "store/format/pack.hpp"
#include "store/format/skip_record.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct MakeSkipOptions {
  /// `from` may be materialised in the store if nothing here leads to it.
  bool may_materialize = false;
  Eviction::Claim claim = Eviction::Claim::stays;   // of the images that are read
  unsigned threads = 0;                             // 0: work_threads()
  std::uint64_t pack_bytes = kPackDataBytesTarget;  // a pack with so much data is full
  kernels::SharedCoder coder = kernels::make_cpu_coder();
  /// Called before each batch of chunks, and before each object is uploaded, by any thread; may
  /// wait, or throw.
  std::function<void(const Context& context)> before_batch = {};
};

struct MadeSkip {
  SkipRecord record;                 // that the bucket has
  bool is_new = false;               // by this call
  std::uint64_t uploaded_bytes = 0;  // by this call: packs and record
};

/// A skip that exists is not made again, whatever became of its packs: a record is never replaced.
/// Damaged images and patches are dropped, and others are used.
/// Returns: nullopt if there can be none (is_wanted()): the two versions have different tensor
/// tables, or something of it was retired.
/// Throws Error: not_found (nothing here leads to `from`, and it may not be materialised; a version
/// does not exist, or a pack is gone), corrupt (also a damaged record), permission, no_space, io,
/// unavailable, timed_out, cancelled.  Progress: "reading", "coding", "uploading".
std::optional<MadeSkip> make_skip(Store& store, History& history, const VersionPair& versions,
                                  const MakeSkipOptions& options, const Context& context,
                                  const Progress& progress);

}  // namespace weightfs
