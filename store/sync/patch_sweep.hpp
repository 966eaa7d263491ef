// Patch sweep: removes patches that are of no use.
//
// Threads: all calls may run in parallel.
// Errors: all throw Error: no_space (the database), io; cancelled, timed_out.
#pragma once

#include <cstddef>

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// Removes the spans that lead to no version that is here, being filled, yet to be checked, or the
/// newest that is known.  Nothing is removed while no version is complete, or while it is not known
/// which versions these are.
/// Returns: how many spans went.
std::size_t remove_stray_patches(Store& store, History& history, const Context& context);

/// Reads all patches; removes spans with a damaged one, so that the rest can be folded, and nobody
/// plans with what cannot be read.  The log names them.
void remove_damaged_patches(PatchTable& patches, const Context& context);

}  // namespace weightfs
