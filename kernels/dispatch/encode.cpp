#include "kernels/dispatch/encode.hpp"

#include <algorithm>
#include <cassert>

#include "kernels/dispatch/variant_table.hpp"

namespace weightfs::kernels {

std::size_t encode_block(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                         std::vector<std::byte>& coded) {
  return chosen_variant().encode_block(kind, old_block, new_block, scratch, coded);
}

std::size_t encode_chunk(Kind kind, ByteSpan old_chunk, ByteSpan new_chunk, Scratch& scratch,
                         std::vector<std::uint32_t>& lengths, std::vector<std::byte>& coded) {
  assert(old_chunk.size() == new_chunk.size() && new_chunk.size() <= chunk_bytes(kind));
  assert(new_chunk.size() % width_bytes(kind) == 0);
  const Variant& variant = chosen_variant();
  std::size_t changed = 0;
  for (std::size_t at = 0; at < new_chunk.size(); at += block_bytes(kind)) {
    const std::size_t size = std::min(block_bytes(kind), new_chunk.size() - at);
    const std::size_t coded_before = coded.size();
    changed += variant.encode_block(kind, old_chunk.subspan(at, size), new_chunk.subspan(at, size),
                                    scratch, coded);
    lengths.push_back(static_cast<std::uint32_t>(coded.size() - coded_before));
  }
  return changed;
}

}  // namespace weightfs::kernels
