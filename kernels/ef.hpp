// EF: the block mode that codes positions by Elias-Fano, and each change as one unit in the last
// place unless it is listed as an exception.
//
// Internal to kernels/: encode.cpp chooses the mode, decode.cpp copies the old block first.
//
// Format: docs/FORMAT.md, "EF".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/block.hpp"

namespace weightfs::kernels {

/// The changes of one block.  Large: keep one for many blocks, and not on the stack.
struct Changes {
  std::size_t count = 0;
  std::size_t exception_count = 0;
  std::array<std::uint16_t, kBlockElements> position;   // of each change, ascending
  std::array<std::int32_t, kBlockElements> difference;  // of each change, never 0
  std::array<std::uint16_t, kBlockElements> exception;  // which changes are larger than one unit
};

/// Replaces `changes` by those from the old block to the new one.
///
/// Requires: as for encode_block.
void find_changes(Kind kind, std::span<const std::byte> old_block,
                  std::span<const std::byte> new_block, Changes& changes) noexcept;

/// Appends `changes` (at least one) to `coded` as an EF block of at most `bytes_max` bytes.
///
/// Requires: they are changes of a block of `elements` elements.
/// Returns: false if the block would be longer or cannot be expressed; `coded` is as it was.
bool encode_ef(const Changes& changes, std::size_t elements, std::size_t bytes_max,
               std::vector<std::byte>& coded);

/// Applies an EF block to `block`, which holds the old elements.
///
/// Returns: false if `coded`, which starts with the mode byte, is malformed.
[[nodiscard]] bool apply_ef(Kind kind, std::span<const std::byte> coded,
                            std::span<std::byte> block) noexcept;

}  // namespace weightfs::kernels
