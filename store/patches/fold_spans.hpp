// fold_spans: makes one span of several.
//
// Merges the spans chunk by chunk, in ascending order of places, and installs a file as soon as it
// is full: whoever is killed goes on from the last file the next time.  The sources stay; removing
// them is a decision of its own (store/patches/plan_folds.hpp).  The result does not depend on the
// sources that were chosen, only on the two versions.  A patch that comes to nothing vanishes.
//
// Memory: PatchReader's for each source, and one patch.  Work: on the calling thread, which brings
// its own priority.
// Threads: may run beside all calls of the table, but not twice for one span.
#pragma once

#include <cstdint>

#include "store/base/context.hpp"
#include "store/database/sorted_file.hpp"
#include "store/patches/patch_table.hpp"
#include "store/patches/plan_folds.hpp"

namespace weightfs {

struct FoldWork {
  SpanInfo span;                 // what was made
  std::uint64_t read_bytes = 0;  // of patches in memory, by this call
  bool was_resumed = false;      // parts were there already
};

/// Requires: fold.from leads forwards from fold.into.first to fold.into.last.
/// Throws Error: cancelled, timed_out (what was installed so far stays), not_found (a source is
/// gone: plan again), corrupt (names the patch), no_space, io.
FoldWork fold_spans(PatchTable& table, const Fold& fold, const Context& context,
                    std::uint64_t file_bytes_max = kSortedFileBytesMax);

}  // namespace weightfs
