// Diff: which elements changed, and by how much.
//
// Threads: pure functions.
// Errors: none; a violated precondition is a bug (assert).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block/block.hpp"
#include "kernels/block/diff_summary.hpp"

namespace weightfs::kernels {

/// Compares two runs of elements.
///
/// Requires: the same size, a multiple of the element's width; any length.
DiffSummary summarize_diff(Kind kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept;

}  // namespace weightfs::kernels
