// Diff: which elements changed, and by how much.
//
// Threads: pure functions.  Errors: none; a broken precondition is a programmer's error (assert).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block.hpp"

namespace weightfs::kernels {

/// What `weightfs diff` prints of a tensor.
struct DiffSummary {
  std::uint64_t changed = 0;      // elements whose bits differ
  std::uint64_t largest_ulp = 0;  // largest |difference| of the order-preserving integers
};

/// Compares two equally long runs of elements.
///
/// Requires: the same size, a multiple of the element's width; any length.
DiffSummary summarize_diff(Kind kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept;

}  // namespace weightfs::kernels
