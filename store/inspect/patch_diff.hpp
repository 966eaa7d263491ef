// Patch diff: what changed between two versions, told by the patches of the store alone: no image
// and no pack is read.
//
//     versions A, B --> path of spans --> per chunk: the sum of its patches --> how much it changes
//
// Where patches do not lead from A to B (they are too old, a tensor table differs, a patch is
// damaged), the answer is nullopt, and the caller compares by other means.
//
// Of changes patches know differences modulo the width of an element: see kernels::summarize_patch.
// So `largest_ulp` is what the largest one is at least; whoever shows it says so.
//
// Threads: pure functions of the store's state; spans may be removed meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/version_pair.hpp"
#include "store/inspect/diff_versions.hpp"
#include "store/inspect/sparse_delta.hpp"
#include "store/local/store.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

/// The changed elements of every chunk.  Asks the bucket for manifests and layouts that the store
/// has not kept.
/// Throws Error: not_found (no such version), cancelled, timed_out, unavailable, io.
std::optional<ChangedCounts> count_by_patches(Store& store, History& history, VersionPair versions,
                                              const Context& context);

/// A part of a comparison: tensors in the order of the layout of versions.to.
struct PatchDiffPage {
  std::vector<TensorDiff> tensors;
  std::optional<std::uint32_t> next;  // the tensor that the next page begins with; nullopt: the end
};

/// What names are counted as beside their bytes, for a limit of a page.
inline constexpr std::size_t kDiffRowBytes = 128;

/// Tensors from `first` on until their names and files, and kDiffRowBytes for each, have
/// `bytes_max`; at least one.  As count_by_patches(); invalid if there is no tensor `first`, unless
/// it is 0.
std::optional<PatchDiffPage> diff_by_patches(Store& store, History& history, VersionPair versions,
                                             std::uint32_t first, std::size_t bytes_max,
                                             const Context& context);

}  // namespace weightfs
