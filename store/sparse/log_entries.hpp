// Log entries: what a decoder noted of a chunk (kernels/block/change_log.hpp), as the entries of a
// sparse delta: with the new bytes at hand it says what the old ones were.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/block/block.hpp"
#include "kernels/block/change_log.hpp"
#include "kernels/block/scratch.hpp"
#include "store/sparse/sparse_file.hpp"
#include "store/sparse/sparse_layout.hpp"

namespace weightfs {

/// Replaces `entries` with those of a chunk whose new bytes are `chunk`: the same as comparing it
/// with its old bytes would give.  In time of the changes, not of the chunk.
///
/// Requires: the log was noted while `chunk` was decoded, and the chunk has its hash.
/// Returns: false if the log is malformed.
[[nodiscard]] bool take_log_entries(kernels::Kind kind, const SparseElement& element,
                                    const kernels::ChangeLog& log, std::span<const std::byte> chunk,
                                    OldValues old, kernels::Scratch& scratch,
                                    SparseEntries& entries);

}  // namespace weightfs
