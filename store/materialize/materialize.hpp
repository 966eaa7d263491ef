// Materialise: builds the files of a version in the store from what this host and the bucket have.
// Makes the plan (store/materialize/plan.hpp), makes room, writes the files
// (store/materialize/write_version.hpp) and records them.
//
// A host may want only some files of a version, and a base may have only some of its own. Then only
// what the wanted files need is fetched and decoded.
//
// Threads: all calls may run in parallel; calls on the same store run one after another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs {

/// Deltas that materialize() applies in one pass. A longer path takes several passes, which bounds
/// the number of versions whose packs and indexes are held at a time.
inline constexpr std::size_t kStepsPerPass = 64;

/// Adds a version to the store: plan, room, write, records.  What the store's patches make of
/// images here is not fetched (store/materialize/patched_base.hpp).  If a base is damaged, it is
/// evicted if possible, and another base or the bucket is used; a damaged patch is removed, and
/// packs of the bucket are used.  Does nothing if the store already has what is wanted; waits for a
/// partial version.  A path of more than kStepsPerPass deltas also adds intermediate versions.
/// `only`: globs of the files to keep (store/materialize/file_filter.hpp); empty: all.  If a
/// complete version lacks some of them, they are added; existing files are not touched.
///
/// Nothing is synced: the version is complete and unsynced (store/local/image_table.hpp).
///
/// After a failure only what was complete before is left of the version.  Calls for one store run
/// one after another: each holds ImageTable::lock_images().  The version may be evicted as soon as
/// this returns, unless the caller has reserved it.
///
/// `watch`: gets the phases wait to record, and where the version came from; nullptr: nobody asks.
void materialize(Store& store, History& history, std::uint64_t version, const Context& context,
                 const Progress& progress,
                 const kernels::SharedCoder& coder = kernels::make_cpu_coder(),
                 const std::vector<std::string>& only = {}, VersionWatch* watch = nullptr);

/// As materialize(), from images here and the store's patches alone: no pack, snapshot or small
/// file is fetched from the bucket. Returns: false if that cannot be done: no patches lead to the
/// version, they are damaged (the log says so), or a small file of it differs from those of the
/// images. Requires: the store has the manifest and the layout; else they are fetched.
bool materialize_from_patches(Store& store, History& history, std::uint64_t version,
                              const Context& context, const Progress& progress,
                              const kernels::SharedCoder& coder = kernels::make_cpu_coder(),
                              const std::vector<std::string>& only = {},
                              VersionWatch* watch = nullptr);

}  // namespace weightfs
