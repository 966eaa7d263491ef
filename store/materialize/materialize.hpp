// Materialise: builds the files of a version in the store from what this host and the bucket have:
// the plan (store/materialize/plan.hpp), room for it, its files
// (store/materialize/write_version.hpp), records.
//
// A host may want only some files of a version, and a base may have only some of its own: then the
// others are ignored, and only what the wanted ones need is fetched and decoded.
//
// Threads: all calls may run in parallel; one of them at a time works on a store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// Deltas that materialize() applies in one pass; a longer path takes several passes, so that packs
/// and indexes of a bounded number of versions are held at a time.
inline constexpr std::size_t kStepsPerPass = 64;

/// Adds a version to the store: plan, room, write, records.  If a base is damaged, it is evicted if
/// possible, and another base or the bucket is used.  Does nothing if the store already has what is
/// wanted; waits for a partial version.  A path of more than kStepsPerPass deltas also adds
/// versions in between. `only`: globs of the files that are kept
/// (store/materialize/file_filter.hpp); empty: all.  If a complete version lacks some of them, they
/// are added; existing files are not touched.
///
/// After a failure only what was complete before is left of the version.  Calls for one store run
/// one after another: each holds Store::lock_images().  The version may be evicted as soon as this
/// returns, unless the caller has reserved it.
void materialize(Store& store, History& history, std::uint64_t version, const Context& context,
                 const Progress& progress,
                 const kernels::SharedCoder& coder = kernels::make_cpu_coder(),
                 const std::vector<std::string>& only = {});

}  // namespace weightfs
