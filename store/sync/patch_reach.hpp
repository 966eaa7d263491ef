// Patch reach: how far the store's patches lead from the base of images in memory
// (ImageTable::base_version), forwards.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct PatchReach {
  std::uint64_t base = 0;        // 0: there is none, and nothing is reached
  std::uint64_t newest = 0;      // complete version; 0: there is none
  std::uint64_t reached = 0;     // newest version to which patches lead, or the base
  std::uint64_t start = 0;       // newest of them that is here: the next span begins there
  std::uint64_t path_bytes = 0;  // of the patches to `reached`
};

/// Throws Error: as History::get() of the base.
PatchReach find_patch_reach(Store& store, History& history, const Context& context);

}  // namespace weightfs
