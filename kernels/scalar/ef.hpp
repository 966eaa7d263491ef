// EF: the block mode that codes positions by Elias-Fano, and each change as one unit in the last
// place unless it is listed as an exception.
//
// Internal to kernels/: encode.cpp chooses the mode, decode.cpp copies the old block first,
// patch.cpp reads the changes, which do not depend on the old block.
//
// Format: docs/FORMAT.md, "EF".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/block/changes.hpp"

namespace weightfs::kernels {

/// Appends `changes` (at least one) to `coded` as an EF block of at most `bytes_max` bytes.
///
/// Requires: they are changes of a block of `elements` elements.
/// Returns: false if the block would be longer or cannot be expressed; `coded` is unchanged.
bool encode_ef(const Changes& changes, std::size_t elements, std::size_t bytes_max,
               std::vector<std::byte>& coded);

/// Applies an EF block to `block`, which holds the old elements.
///
/// Returns: false if `coded`, which begins with the mode byte, is malformed.
[[nodiscard]] bool apply_ef(Kind kind, ByteSpan coded, std::span<std::byte> block) noexcept;

/// Replaces `changes` with those of an EF block of `elements` elements.
///
/// Returns: false if `coded`, which begins with the mode byte, is malformed; `changes` is then
/// undefined.
[[nodiscard]] bool read_ef(Kind kind, std::size_t elements, ByteSpan coded,
                           Changes& changes) noexcept;

}  // namespace weightfs::kernels
