// Patch: the change of one block, independent of its base.
//
// A patch is a coded block of mode EF (a list of changes) or DIFF (a difference for every element).
// Differences of the order-preserving integers can be added modulo 2^width, so the patches of
// consecutive versions can be folded into one, a change that is undone vanishes, and a patch can be
// inverted:
//
//     apply(old, make_patch(old, new)) == new
//     fold({make_patch(a, b), make_patch(b, c)}) == make_patch(a, c)
//     apply(new, invert(make_patch(old, new))) == old
//
// An empty patch changes nothing.  Every function returns the same patch that make_patch would
// return for these differences: empty, else EF if it can be expressed and 8 * bytes(EF) <= 7 *
// bytes(DIFF), else DIFF.
//
// Patches are untrusted: every function is total, and its work is bounded by the sizes.
//
// Variants: the functions here call the chosen one (kernels/block/variant.hpp).
// Threads: pure functions.  Format: docs/FORMAT.md, "Patches".
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/changes.hpp"
#include "kernels/block/diff_summary.hpp"
#include "kernels/block/scratch.hpp"

namespace weightfs::kernels {

/// The longest patch that the functions here return.
constexpr std::size_t patch_bytes_max(Kind kind) noexcept { return coded_block_bytes_max(kind); }

/// Appends the patch from the old block to the new one.
///
/// Requires: the same size, a multiple of the element's width and at most one block.
/// Returns: the number of changed elements.
std::size_t make_patch(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                       std::vector<std::byte>& patch);

/// Applies a patch in place.
///
/// Returns: false if it is malformed; the block is then undefined.
[[nodiscard]] bool apply_patch(Kind kind, ByteSpan patch, std::span<std::byte> block,
                               Scratch& scratch) noexcept;

/// Appends the sum of patches of the same block of `elements` elements to `folded`.
///
/// Returns: false if one is malformed; `folded` is unchanged.
[[nodiscard]] bool fold_patches(Kind kind, std::size_t elements, std::span<const ByteSpan> patches,
                                Scratch& scratch, std::vector<std::byte>& folded);

/// Appends the patch that undoes `patch` to `inverse`.
///
/// Returns: false if it is malformed; `inverse` is unchanged.
[[nodiscard]] bool invert_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                                std::vector<std::byte>& inverse);

/// What a patch changes: `changed` as summarize_diff() of the two blocks would count it.  A patch
/// knows differences modulo 2^width, so `largest_ulp` counts the shorter way round: it is
/// summarize_diff()'s unless an element moves over more than half of the range of its type.
///
/// Returns: false if it is malformed; `summary` is then undefined.
[[nodiscard]] bool summarize_patch(Kind kind, std::size_t elements, ByteSpan patch,
                                   Scratch& scratch, DiffSummary& summary);

/// Appends the patch that a decoder's log comes to (kernels/block/change_log.hpp): what make_patch
/// would return for the block before and after.
///
/// Returns: false if the log is malformed; `patch` is unchanged.
[[nodiscard]] bool patch_of_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch,
                                std::vector<std::byte>& patch);

/// The changes that a decoder's log comes to, in `scratch` until its next use: positions and
/// differences; exceptions are not listed.  In time of the changes, not of the elements.
///
/// Returns: nullptr if the log is malformed.
[[nodiscard]] const Changes* changes_of_log(Kind kind, std::size_t elements, ByteSpan log,
                                            Scratch& scratch);

}  // namespace weightfs::kernels
