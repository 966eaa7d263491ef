#include "kernels/encode.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>

#include "kernels/ef.hpp"

namespace weightfs::kernels {
namespace {

using ByteSpan = std::span<const std::byte>;

bool are_equal(ByteSpan a, ByteSpan b) noexcept {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
}

void append_raw(ByteSpan block, std::vector<std::byte>& coded) {
  coded.push_back(static_cast<std::byte>(Mode::raw));
  coded.insert(coded.end(), block.begin(), block.end());
}

/// Codes one block, with `changes` as scratch.
std::size_t encode(Kind kind, ByteSpan old_block, ByteSpan new_block, Changes& changes,
                   std::vector<std::byte>& coded) {
  if (are_equal(old_block, new_block)) return 0;
  find_changes(kind, old_block, new_block, changes);
  const std::size_t raw_bytes = 1 + new_block.size();
  if (!encode_ef(changes, new_block.size() / width_bytes(kind), 7 * raw_bytes / 8, coded)) {
    append_raw(new_block, coded);
  }
  return changes.count;
}

/// The arrays stay as they are: zeroing them would cost more than most blocks.
std::unique_ptr<Changes> make_scratch() { return std::make_unique_for_overwrite<Changes>(); }

}  // namespace

std::size_t encode_block(Kind kind, std::span<const std::byte> old_block,
                         std::span<const std::byte> new_block, std::vector<std::byte>& coded) {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  return encode(kind, old_block, new_block, *make_scratch(), coded);
}

std::size_t encode_chunk(Kind kind, std::span<const std::byte> old_chunk,
                         std::span<const std::byte> new_chunk, std::vector<std::uint32_t>& lengths,
                         std::vector<std::byte>& coded) {
  assert(old_chunk.size() == new_chunk.size() && new_chunk.size() <= chunk_bytes(kind));
  assert(new_chunk.size() % width_bytes(kind) == 0);
  const std::unique_ptr<Changes> scratch = make_scratch();
  std::size_t changed = 0;
  for (std::size_t at = 0; at < new_chunk.size(); at += block_bytes(kind)) {
    const std::size_t size = std::min(block_bytes(kind), new_chunk.size() - at);
    const std::size_t coded_before = coded.size();
    changed +=
        encode(kind, old_chunk.subspan(at, size), new_chunk.subspan(at, size), *scratch, coded);
    lengths.push_back(static_cast<std::uint32_t>(coded.size() - coded_before));
  }
  return changed;
}

}  // namespace weightfs::kernels
