#include <algorithm>
#include <cassert>

#include "kernels/block/copy_block.hpp"
#include "kernels/scalar/ef.hpp"
#include "kernels/scalar/scalar.hpp"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels {

bool scalar::decode_block(Kind kind, ByteSpan old_block, ByteSpan coded,
                          std::span<std::byte> new_block, Scratch& scratch) noexcept {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  const std::size_t raw_bytes = 1 + new_block.size();
  if (coded.size() > raw_bytes) return false;
  const Mode mode = coded.empty() ? Mode::same : static_cast<Mode>(coded.front());
  switch (mode) {
    case Mode::same:
      if (coded.size() > 1) return false;
      copy_block(old_block, new_block);
      return true;
    case Mode::raw:
      if (coded.size() != raw_bytes) return false;
      std::copy(coded.begin() + 1, coded.end(), new_block.begin());
      return true;
    case Mode::ef:
      copy_block(old_block, new_block);
      return apply_ef(kind, coded, new_block);
    case Mode::xr:
    case Mode::xs:
      scratch.reset();
      return decode_xr(kind, old_block, coded, new_block, scratch);
    case Mode::diff:
      break;
  }
  return false;
}

}  // namespace weightfs::kernels
