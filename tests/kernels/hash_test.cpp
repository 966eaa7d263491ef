#include "kernels/hash.hpp"

#include <gtest/gtest.h>

#include <span>
#include <string_view>
#include <vector>

namespace weightfs::kernels {
namespace {

std::uint64_t hash_text(std::string_view text) {
  return hash_chunk(std::as_bytes(std::span(text.data(), text.size())));
}

// The values are those of the reference implementation without SIMD dispatch.
TEST(Hash, IsXxh3OfSeedZero) {
  EXPECT_EQ(hash_text(""), 0x2D06800538D394C2ULL);
  EXPECT_EQ(hash_text("abc"), 0x78AF5F94892F3950ULL);
}

TEST(Hash, OfAWholeChunkIsTheSameWhateverTheInstructions) {
  std::vector<std::byte> chunk(2 << 20);
  for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<std::byte>(i % 251);
  EXPECT_EQ(hash_chunk(chunk), 0x15602CE94E73B8C9ULL);
}

TEST(Hash, SeesEveryBit) {
  std::vector<std::byte> chunk(1000);
  const std::uint64_t before = hash_chunk(chunk);
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    chunk[i] ^= std::byte{1};
    EXPECT_NE(hash_chunk(chunk), before) << i;
    chunk[i] ^= std::byte{1};
  }
  EXPECT_EQ(hash_chunk(chunk), before);
}

}  // namespace
}  // namespace weightfs::kernels
