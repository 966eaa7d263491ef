#include "kernels/dispatch/hash.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <span>
#include <string_view>
#include <vector>

#include "kernels/dispatch/variant_table.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

std::uint64_t hash_text(std::string_view text) {
  return hash_chunk(std::as_bytes(std::span(text.data(), text.size())));
}

std::vector<std::byte> random_bytes(std::size_t size, test::Random& rng) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
  return bytes;
}

/// Every variant against libxxhash.
void expect_hash(ByteSpan bytes) {
  const std::uint64_t expected = XXH3_64bits(bytes.data(), bytes.size());
  for (const Variant& variant : variants()) {
    ASSERT_EQ(variant.hash_chunk(bytes), expected) << variant.name << ", " << bytes.size();
  }
}

// The values are those of the reference implementation without SIMD dispatch.
TEST(Hash, IsXxh3OfSeedZero) {
  EXPECT_EQ(hash_text(""), 0x2D06800538D394C2ULL);
  EXPECT_EQ(hash_text("abc"), 0x78AF5F94892F3950ULL);
}

TEST(Hash, OfAWholeChunkIsTheSameWhateverTheInstructions) {
  std::vector<std::byte> chunk(2 << 20);
  for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = static_cast<std::byte>(i % 251);
  for (const Variant& variant : variants()) {
    EXPECT_EQ(variant.hash_chunk(chunk), 0x15602CE94E73B8C9ULL) << variant.name;
  }
}

TEST(Hash, IsThatOfTheLibraryForEveryShortLength) {
  auto rng = test::make_rng();
  const std::vector<std::byte> bytes = random_bytes(2056, rng);
  for (std::size_t size = 0; size <= 2048; ++size) {
    for (const std::size_t begin : {0U, 1U, 3U, 8U}) {
      ASSERT_NO_FATAL_FAILURE(expect_hash(ByteSpan(bytes).subspan(begin, size)));
    }
  }
}

TEST(Hash, IsThatOfTheLibraryForLongInputs) {
  auto rng = test::make_rng();
  const std::vector<std::byte> bytes = random_bytes((4U << 20) + 16, rng);
  for (const std::size_t size : {1U << 20, (1U << 20) + 1, (4U << 20) - 1, 4U << 20}) {
    ASSERT_NO_FATAL_FAILURE(expect_hash(ByteSpan(bytes).subspan(rng() % 16, size)));
  }
  for (int i = 0; i < 200; ++i) {
    const std::size_t size = rng() % (i % 2 == 0 ? 10'000 : 300'000);
    ASSERT_NO_FATAL_FAILURE(expect_hash(ByteSpan(bytes).subspan(rng() % 4096, size)));
  }
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
