// Check images: whether versions that were not synced before the end of the last process, or were
// written to later, are what they were: a power cut leaves files of the right size with other
// bytes, and so does whoever copies a store that is in use.
//
// Threads: all calls may run in parallel; one at a time for a store.
#pragma once

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// Compares every byte of ImageTable::unchecked_versions() with what was published (heads of files,
/// hashes of chunks and of small files), in parallel over chunks.  Those that are right are
/// complete from then on, and unsynced.  Damaged ones are removed, with a warning in the log; who
/// needs them makes them again.  What cannot be checked, because the store has no record of its
/// manifest or layout and the bucket does not answer, stays as it is.
///
/// To be called before anybody is shown what the store has.  Throws Error: cancelled, timed_out.
void check_images(Store& store, History& history, const Context& context,
                  const Progress& progress = {});

}  // namespace weightfs
