// fold_spans: makes one span of several.
//
// Merges the spans chunk by chunk, in ascending order of places, and installs a file as soon as it
// is full: whoever is killed goes on from the last file the next time.  The sources stay; removing
// them is a decision of its own (store/patches/plan_folds.hpp).  The result does not depend on the
// sources that were chosen, only on the two versions.  A patch that comes to nothing vanishes.
//
// The coder adds the patches up, many chunks in one call where that is worthwhile (a GPU).
//
// Memory: PatchReader's for each source, and kFoldBatchBytes of patches, or those of one chunk.
// Work: on the calling thread, which brings its own priority. Threads: may run beside all calls of
// the table, but not twice at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/database/sorted_file.hpp"
#include "store/patches/patch_table.hpp"
#include "store/patches/plan_folds.hpp"

namespace weightfs {

inline constexpr std::size_t kFoldBatchBytes = 16u << 20;

/// Requires: fold.from leads forwards from fold.into.first to fold.into.last.
/// Returns: the span that was made.
/// Throws Error: cancelled, timed_out (files that were full are kept), not_found (a source is gone:
/// plan again), corrupt (names the patch), no_space, io.
SpanInfo fold_spans(PatchTable& table, const Fold& fold, const Context& context,
                    std::uint64_t file_bytes_max = kSortedFileBytesMax,
                    const kernels::SharedCoder& coder = kernels::make_cpu_coder());

struct FoldedAll {
  std::size_t folds = 0, drops = 0;
  bool is_base_outgrown = false;  // FoldPlan::is_base_outgrown
};

/// Plans, folds and removes until nothing is left to do but to remove what is held.  What was begun
/// of folds that are not planned any more is removed.  Throws as fold_spans().
FoldedAll fold_all(PatchTable& table, const FoldLimits& limits, const Context& context,
                   const kernels::SharedCoder& coder = kernels::make_cpu_coder());

}  // namespace weightfs
