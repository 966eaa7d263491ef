// Encode: codes the change from an old block or chunk to a new one.
//
// An unchanged block has coded length 0 and takes no bytes.  For any other block the encoder takes
// the smallest mode by the rule in docs/FORMAT.md, so a delta never exceeds the plain bytes by more
// than one byte per block.
//
// Variants: these functions call the chosen one (kernels/block/variant.hpp); all give the same
// bytes.
//
// Threads: pure functions.
// Errors: none; a violated precondition is a bug (assert).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/scratch.hpp"

namespace weightfs::kernels {

/// Codes one block and appends it to `coded`; appends nothing if the two are equal.
///
/// Requires: old_block and new_block have the same size, a multiple of the element's width and at
///           most one block.
/// Returns: the number of changed elements.
std::size_t encode_block(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                         std::vector<std::byte>& coded);

/// Codes one chunk: appends one length to `lengths` for each block (0 = unchanged), and the coded
/// blocks, back to back, to `coded`.
///
/// Requires: as for encode_block, with at most one chunk.
/// Returns: the number of changed elements.
std::size_t encode_chunk(Kind kind, ByteSpan old_chunk, ByteSpan new_chunk, Scratch& scratch,
                         std::vector<std::uint32_t>& lengths, std::vector<std::byte>& coded);

}  // namespace weightfs::kernels
