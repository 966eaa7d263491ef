#include <algorithm>
#include <cassert>
#include <vector>

#include "kernels/block/change_log.hpp"
#include "kernels/block/copy_block.hpp"
#include "kernels/block/ordered.hpp"
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

/// An EF block is its own log; everything else is compared.
bool scalar::decode_logged(Kind kind, ByteSpan old_block, ByteSpan coded,
                           std::span<std::byte> new_block, Scratch& scratch,
                           std::vector<std::byte>& log) {
  const Mode mode = coded.empty() ? Mode::same : static_cast<Mode>(coded.front());
  if (mode == Mode::same) return decode_block(kind, old_block, coded, new_block, scratch);
  if (mode == Mode::ef) {
    if (!decode_block(kind, old_block, coded, new_block, scratch)) return false;
    append_log_header(log, LogForm::patch, coded.size());
    append_bytes(log, coded.data(), coded.size());
    return true;
  }
  const std::vector<std::byte> before(old_block.begin(), old_block.end());
  if (!decode_block(kind, old_block, coded, new_block, scratch)) return false;
  with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    std::vector<Bits> differences(before.size() / sizeof(Bits));
    for (std::size_t i = 0; i < differences.size(); ++i) {
      const std::size_t at = i * sizeof(Bits);
      differences[i] = static_cast<Bits>(
          Element::difference(load<Bits>(before.data() + at), load<Bits>(new_block.data() + at)));
    }
    append_log_diff(log, differences.data(), differences.size());
  });
  return true;
}

}  // namespace weightfs::kernels
