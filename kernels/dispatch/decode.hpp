// Decode: old bytes and coded bytes give new bytes, for every mode.
//
// Decoders are total functions over hostile input: any coded bytes give a block or a refusal, never
// an access outside the spans, never more work than O(elements + coded bytes).  A refused call may
// have written part of the new bytes; the caller throws them away.
//
// A block decodes against a wrong base without complaint in many cases: the caller compares the
// hash of the result (kernels/dispatch/hash.hpp).
//
// Variants: these functions call the chosen one (kernels/block/variant.hpp); all give the same
// bytes and the same refusals.
//
// Threads: pure functions.  Aliasing: the old and the new bytes must not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/block/block.hpp"
#include "kernels/block/scratch.hpp"

namespace weightfs::kernels {

/// Decodes one block; `coded` is empty, or starts with the mode byte.  Empty means unchanged.
///
/// Requires: old_block and new_block have the same size, a multiple of the element's width and at
///           most one block.
/// Returns: false if `coded` is malformed.
[[nodiscard]] bool decode_block(Kind kind, ByteSpan old_block, ByteSpan coded,
                                std::span<std::byte> new_block, Scratch& scratch) noexcept;

/// Decodes one chunk: lengths[i] bytes of `coded` belong to block i, back to back.
///
/// Requires: as for decode_block, with at most one chunk.
/// Returns: false if a block is malformed, if there is not one length for each block, or if the
///          lengths do not add up to coded.size().
[[nodiscard]] bool decode_chunk(Kind kind, ByteSpan old_chunk,
                                std::span<const std::uint32_t> lengths, ByteSpan coded,
                                std::span<std::byte> new_chunk, Scratch& scratch) noexcept;

}  // namespace weightfs::kernels
