// Changes: which elements of a block differ, and by how much.  `diff` returns them, all modes
// encode them, patches contain them.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/block/block.hpp"

namespace weightfs::kernels {

/// Spare entries at the end of a list of changes, so that the code that fills it may store whole
/// vectors.
inline constexpr std::size_t kChangesSlack = 64;

/// The changes of one block.  Large (512 KiB): reuse one for many blocks, and keep it off the
/// stack.  Only the first `count`, or `exception_count`, entries are valid.
struct Changes {
  template <typename Value>
  using List = std::array<Value, kBlockElements + kChangesSlack>;

  std::size_t count = 0;
  std::size_t exception_count = 0;
  List<std::uint16_t> position;   // of each change, ascending
  List<std::int32_t> difference;  // of each change, never 0
  List<std::uint16_t> exception;  // which changes are larger than one unit
};

/// -x if `is_negative`, else x.  Signs are random: half of the branches on them would be
/// mispredicted.
constexpr std::uint32_t negate_if(bool is_negative, std::uint32_t x) noexcept {
  const std::uint32_t mask = 0U - std::uint32_t{is_negative};
  return (x ^ mask) - mask;
}

constexpr std::uint32_t magnitude(std::int32_t difference) noexcept {
  return negate_if(difference < 0, static_cast<std::uint32_t>(difference));
}

/// Replaces `changes` with those from the old block to the new one.  The scalar reference.
///
/// Requires: the same size, a multiple of the element's width and at most one block.
void find_changes(Kind kind, ByteSpan old_block, ByteSpan new_block, Changes& changes) noexcept;

}  // namespace weightfs::kernels
