// Patch reach: how far the store's patches lead, and from where the next ones are to be taken.
//
// Images in memory: from the base (ImageTable::base_version) forwards.  Images on the disk: from
// the newest complete version, back and forth.  There it begins anew where no patches lead to that
// version and none ever can, because no version here has its tensor table.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <map>

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct PatchReach {
  std::uint64_t base = 0;        // of images in memory; 0: there is none, and nothing is reached
  std::uint64_t newest = 0;      // complete version; 0: there is none
  std::uint64_t reached = 0;     // newest version to which patches lead, or the base, or `start`
  std::uint64_t start = 0;       // newest of them that is here: the next span begins there
  std::uint64_t first = 0;       // oldest version that patches make of those here; 0: there is none
  std::uint64_t versions = 0;    // that patches make, or that are here and lead to these
  std::uint64_t path_bytes = 0;  // of the patches from the base to `reached`

  /// Patches from `start` to `newest` are to be taken.
  [[nodiscard]] bool is_due() const noexcept {
    return start != 0 && start < newest && reached < newest;
  }
};

/// Images from which no patches can be taken: versions, and which images of them
/// (ImageTable::generation).
using DamagedImages = std::map<std::uint64_t, std::uint64_t>;

/// Throws Error: as History::get() and History::layout() of versions that are here.
PatchReach find_patch_reach(Store& store, History& history, const Context& context,
                            const DamagedImages& damaged = {});

}  // namespace weightfs
