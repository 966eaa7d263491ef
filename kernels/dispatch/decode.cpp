#include "kernels/dispatch/decode.hpp"

#include <algorithm>
#include <cassert>

#include "kernels/dispatch/variant_table.hpp"

namespace weightfs::kernels {

bool decode_block(Kind kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                  Scratch& scratch) noexcept {
  return chosen_variant().decode_block(kind, old_block, coded, new_block, scratch);
}

bool decode_chunk(Kind kind, ByteSpan old_chunk, std::span<const std::uint32_t> lengths,
                  ByteSpan coded, std::span<std::byte> new_chunk, Scratch& scratch) noexcept {
  assert(old_chunk.size() == new_chunk.size() && new_chunk.size() <= chunk_bytes(kind));
  assert(new_chunk.size() % width_bytes(kind) == 0);
  if (lengths.size() != block_count(kind, new_chunk.size())) return false;
  const Variant& variant = chosen_variant();
  std::size_t at = 0;
  for (const std::uint32_t length : lengths) {
    const std::size_t size = std::min(block_bytes(kind), new_chunk.size() - at);
    if (length > coded.size()) return false;
    if (!variant.decode_block(kind, old_chunk.subspan(at, size), coded.first(length),
                              new_chunk.subspan(at, size), scratch)) {
      return false;
    }
    coded = coded.subspan(length);
    at += size;
  }
  return coded.empty();
}

}  // namespace weightfs::kernels
