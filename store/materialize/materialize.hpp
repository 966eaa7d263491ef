// Materialise: turns what this host has, and what the bucket holds, into the files of a version in
// the store: the plan (store/materialize/plan.hpp), room for it, its files
// (store/materialize/write_version.hpp), records.
//
// A host may want only some files of a version, and a base may have only some of its own: then the
// others are not looked at, and only what the wanted ones need is fetched and decoded.
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

/// Deltas that materialize() applies in one pass; a longer way is gone in several, so that packs
/// and indexes of a bounded number of versions are held at a time.
inline constexpr std::size_t kStepsPerPass = 64;

/// Brings a version into the store: plan, room, write, records.  Tries again from another base or
/// the bucket if a base is damaged, and evicts that one if it may go.  Does nothing if the store
/// has what is wanted already; waits for a version that is partial.  A way of more than
/// kStepsPerPass deltas brings in versions on the way too.
/// `only`: globs of the files that are kept (store/materialize/file_filter.hpp); empty: all.  To a
/// version that is complete without some of them these are added; what is there is not touched.
///
/// After a failure nothing of the version is left but what was complete before.  Several calls for
/// one store come one after the other: it holds Store::lock_images().  It may be evicted as soon as
/// this returns, unless the caller has it reserved.
void materialize(Store& store, History& history, std::uint64_t version, const Context& context,
                 const Progress& progress,
                 const kernels::SharedCoder& coder = kernels::make_cpu_coder(),
                 const std::vector<std::string>& only = {});

}  // namespace weightfs
