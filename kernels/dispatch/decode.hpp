// Decode: makes new bytes from old bytes and coded bytes, for every mode.
//
// Decoders are total functions over hostile input: any coded bytes yield a block or a refusal,
// never an access outside the spans, and never more work than O(elements + coded bytes).  A refused
// call may have written part of the new bytes; the caller must discard them.
//
// Decoding against a wrong base often succeeds, so the caller compares the hash of the result
// (kernels/dispatch/hash.hpp).
//
// Variants: these functions call the chosen one (kernels/block/variant.hpp); all give the same
// bytes and the same refusals.
//
// Threads: pure functions.
//
// Aliasing: the new bytes are the old ones, which are then changed in place, or do not overlap
// them. A refused call in place loses the old bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/block/block.hpp"
#include "kernels/block/scratch.hpp"

namespace weightfs::kernels {

/// Decodes one block.  `coded` begins with the mode byte, or is empty, which means unchanged.
///
/// Requires: old_block and new_block have the same size, a multiple of the element's width and at
/// most one block.
/// Returns: false if `coded` is malformed.
[[nodiscard]] bool decode_block(Kind kind, ByteSpan old_block, ByteSpan coded,
                                std::span<std::byte> new_block, Scratch& scratch) noexcept;

/// Decodes one chunk: lengths[i] bytes of `coded` belong to block i, back to back.
///
/// Requires: as for decode_block, with at most one chunk.
/// Returns: false if a block is malformed, if there is not exactly one length for each block, or if
/// the lengths do not add up to coded.size().
[[nodiscard]] bool decode_chunk(Kind kind, ByteSpan old_chunk,
                                std::span<const std::uint32_t> lengths, ByteSpan coded,
                                std::span<std::byte> new_chunk, Scratch& scratch) noexcept;

}  // namespace weightfs::kernels
