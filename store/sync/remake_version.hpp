// Remake version: makes versions again that this host had, of images here and the store's patches,
// without the bucket, which may be away: after a restart with images in memory, or after a power
// cut has taken an image that was not synced.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"
#include "store/timing/phase_watch.hpp"

namespace weightfs {

struct RemakeOptions {
  kernels::SharedCoder coder;
  std::vector<std::string> only;  // globs of the files that are kept
  Progress progress;
  /// Shows a version that was made; it stays here until this has returned.
  std::function<void(VersionWatch& watch)> made;
};

/// Makes the newest version that is known here; or, if its patches were not taken, the newest one
/// before it.  Nothing is thrown: the log says why it could not be made.
/// Returns: whether the newest was made.
bool remake_newest(Store& store, History& history, const RemakeOptions& options,
                   const Context& context);

}  // namespace weightfs
