#include <cassert>
#include <cstring>

#include "kernels/scalar/scalar.hpp"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels {
namespace {

bool are_equal(ByteSpan a, ByteSpan b) noexcept {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

std::size_t scalar::encode_block(Kind kind, ByteSpan old_block, ByteSpan new_block,
                                 Scratch& scratch, std::vector<std::byte>& coded) {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  if (are_equal(old_block, new_block)) return 0;
  scratch.reset();
  Changes& changes = scratch.take_changes();
  kernels::find_changes(kind, old_block, new_block, changes);
  const unsigned ebase = choose_ebase(kind, old_block);
  const ClassedChanges classed = classify(kind, old_block, changes, ebase, scratch);
  encode_best(kind, new_block, ebase, changes, classed, coded);
  return changes.count;
}

}  // namespace weightfs::kernels
