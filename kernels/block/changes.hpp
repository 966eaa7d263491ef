// Changes: which elements of a block differ, and by how much.  What `diff` gives, what the encoders
// of all modes code, and what patches hold.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/block/block.hpp"

namespace weightfs::kernels {

/// Spare entries after the last one of a list of changes, so that the code that fills it may store
/// whole vectors.
inline constexpr std::size_t kChangesSlack = 64;

/// The changes of one block.  Large (512 KiB): keep one for many blocks, and not on the stack.
/// Only the first `count`, or `exception_count`, entries mean anything.
struct Changes {
  template <typename Value>
  using List = std::array<Value, kBlockElements + kChangesSlack>;

  std::size_t count = 0;
  std::size_t exception_count = 0;
  List<std::uint16_t> position;   // of each change, ascending
  List<std::int32_t> difference;  // of each change, never 0
  List<std::uint16_t> exception;  // which changes are larger than one unit
};

/// -x if `is_negative`, else x.  Signs are random: a branch would be mispredicted half the time.
constexpr std::uint32_t negate_if(bool is_negative, std::uint32_t x) noexcept {
  const std::uint32_t mask = 0U - std::uint32_t{is_negative};
  return (x ^ mask) - mask;
}

constexpr std::uint32_t magnitude(std::int32_t difference) noexcept {
  return negate_if(difference < 0, static_cast<std::uint32_t>(difference));
}

/// Replaces `changes` by those from the old block to the new one.  The scalar reference.
///
/// Requires: the same size, a multiple of the element's width and at most one block.
void find_changes(Kind kind, ByteSpan old_block, ByteSpan new_block, Changes& changes) noexcept;

}  // namespace weightfs::kernels
