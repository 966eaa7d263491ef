// Make early: makes files of the version that comes next before its manifest is known, from the
// parent's images and the packs that its early record names.
//
// While a trainer saves, its writer's mount has coded and uploaded most files; a reader that makes
// these meanwhile has little to do when the version is committed.  What a version takes of it:
// store/materialize/early_version.hpp.
//
// Threads: all calls may run in parallel.  Format: docs/FORMAT.md, "Early records".
#pragma once

#include <cstdint>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/format/early_record.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct EarlyMade {
  std::uint64_t bytes = 0;          // of the files
  std::uint64_t fetched_bytes = 0;  // of packs
};

/// Makes those files of the record that the store does not have yet (Store::early_images).
/// Nothing is evicted for it that would not go for the version: on the disk what should have gone
/// ahead (store/sync/room_ahead.hpp).  What cannot be made is left to the version.
/// Requires: the version before the record's is complete here, with all its files.
/// Returns: nothing also if there is no room, somebody wants the delta to the version (which is
/// made with it: store/sparse/ahead_deltas.hpp), the record is of another history, or the version
/// is being made already.
/// Throws Error: as make_plan() and write_version(); then nothing of this pass is left.  Cancelled
/// also if a version comes meanwhile to which these files are of no use.
EarlyMade make_early(Store& store, History& history, const EarlyRecord& record,
                     const kernels::SharedCoder& coder, const Context& context);

}  // namespace weightfs
