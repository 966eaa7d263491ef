// Copy block: brings a block to where it is wanted, which may be where it lies.
#pragma once

#include <cstring>

#include "kernels/block/block.hpp"

namespace weightfs::kernels {

/// Requires: the same size; `to` is `from`, or apart from it.
inline void copy_block(ByteSpan from, std::span<std::byte> to) noexcept {
  if (from.data() != to.data() && !from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace weightfs::kernels
