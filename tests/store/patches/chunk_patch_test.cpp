#include "store/patches/chunk_patch.hpp"

#include <gtest/gtest.h>

#include <array>

#include "kernels/dispatch/hash.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using kernels::Kind;
using test::code_of;

constexpr std::string_view kWhat = "the patch of tensor 3, chunk 5";

struct ChunkPatchTest : testing::Test {
  kernels::Scratch scratch;
  test::Random rng = test::make_rng();

  [[nodiscard]] Bytes applied(const std::vector<ChunkPatch>& patches, Bytes chunk,
                              Kind kind = Kind::bf16) {
    apply_chunk_patches(patches, kind, chunk, scratch, kWhat);
    return chunk;
  }
  ChunkPatch made(const Bytes& from, const Bytes& to, Kind kind = Kind::bf16) {
    auto patch = make_chunk_patch(kind, from, to, scratch);
    EXPECT_TRUE(patch);
    return patch.value_or(ChunkPatch{});
  }
};

// Sizes around a block, in elements.
constexpr std::array<std::size_t, 6> kSizes{1, 17, 65'535, 65'536, 65'537, 200'001};

TEST_F(ChunkPatchTest, AppliesMergesAndInverts) {
  for (const std::size_t elements : kSizes) {
    SCOPED_TRACE(elements);
    const Bytes a = test::random_bf16(elements, rng);
    Bytes b = test::nudged_bf16(a, 0.02, rng), c = test::nudged_bf16(b, 0.5, rng);
    if (b == a) b[0] ^= std::byte{1};
    while (c == a || c == b) c[1] ^= std::byte{static_cast<unsigned char>(rng())};
    const ChunkPatch ab = made(a, b), bc = made(b, c), ac = made(a, c);
    EXPECT_EQ(applied({ab}, a), b);
    EXPECT_EQ(applied({ab, bc}, a), c);
    EXPECT_EQ(merge_chunk_patches(std::vector{ab, bc}, scratch, kWhat), ac);
    EXPECT_EQ(invert_chunk_patch(ab, scratch, kWhat), made(b, a));
    EXPECT_EQ(applied({invert_chunk_patch(ac, scratch, kWhat)}, c), a);
    EXPECT_EQ(ab.hash_before, kernels::hash_chunk(a));
    EXPECT_EQ(ab.hash_after, kernels::hash_chunk(b));
  }
}

TEST_F(ChunkPatchTest, TakesEveryKind) {
  for (const Kind kind :
       {Kind::u8, Kind::bf16, Kind::f16, Kind::f32, Kind::f8_e4m3, Kind::f8_e5m2}) {
    const Bytes a = test::random_bf16(140'000, rng), b = test::nudged_bf16(a, 0.1, rng);
    const ChunkPatch patch = made(a, b, kind);
    EXPECT_EQ(applied({patch}, a, kind), b);
    const std::string value = encode_chunk_patch(patch, 7, "key");
    EXPECT_EQ(decode_chunk_patch(value, 7, "key", kWhat), patch);
  }
}

TEST_F(ChunkPatchTest, WhatDidNotChangeHasNoPatch) {
  const Bytes a = test::random_bf16(70'000, rng);
  EXPECT_EQ(make_chunk_patch(Kind::bf16, a, a, scratch), std::nullopt);
  EXPECT_EQ(applied({}, a), a);
}

TEST_F(ChunkPatchTest, WhatCameBackVanishes) {
  const Bytes a = test::random_bf16(70'000, rng), b = test::nudged_bf16(a, 0.3, rng);
  EXPECT_EQ(merge_chunk_patches(std::vector{made(a, b), made(b, a)}, scratch, kWhat), std::nullopt);
}

TEST_F(ChunkPatchTest, APatchIsSmallWhereLittleChanged) {
  const Bytes a = test::random_bf16(1'048'576, rng), b = test::nudged_bf16(a, 0.011, rng);
  EXPECT_LT(encode_chunk_patch(made(a, b), 1, "key").size(), a.size() / 100);
  const Bytes c = test::random_bf16(1'048'576, rng);
  EXPECT_LT(encode_chunk_patch(made(a, c), 1, "key").size(), a.size() + 200);
}

TEST_F(ChunkPatchTest, PatchesThatDoNotJoinAreRefused) {
  const Bytes a = test::random_bf16(100, rng), b = test::nudged_bf16(a, 0.9, rng);
  const Bytes longer = test::random_bf16(101, rng), other = test::random_bf16(101, rng);
  std::string message;
  const auto expect_refused = [&](const std::vector<ChunkPatch>& patches) {
    EXPECT_EQ(code_of([&] { (void)merge_chunk_patches(patches, scratch, kWhat); }, &message),
              ErrorCode::corrupt);
    EXPECT_TRUE(message.starts_with(kWhat)) << message;
    EXPECT_EQ(code_of([&] { (void)applied(patches, a); }), ErrorCode::corrupt);
  };
  expect_refused({made(a, b), made(a, b)});
  expect_refused({made(a, b), made(longer, other)});
  expect_refused({made(a, b), made(a, b, Kind::f16)});
}

TEST_F(ChunkPatchTest, OtherBytesAreFoundByTheHash) {
  const Bytes a = test::random_bf16(5000, rng), b = test::nudged_bf16(a, 0.1, rng);
  Bytes damaged = a;
  damaged[4000] ^= std::byte{4};
  std::string message;
  EXPECT_EQ(code_of([&] { (void)applied({made(a, b)}, damaged); }, &message), ErrorCode::corrupt);
  EXPECT_TRUE(message.starts_with(kWhat)) << message;
  EXPECT_EQ(code_of([&] { (void)applied({made(a, b)}, Bytes(4000)); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { (void)applied({made(a, b)}, a, Kind::f16); }), ErrorCode::corrupt);
}

TEST_F(ChunkPatchTest, AHashThatDisagreesWithThePatchesIsFoundByMerging) {
  const Bytes a = test::random_bf16(100, rng), b = test::nudged_bf16(a, 0.9, rng);
  ChunkPatch there = made(a, b), back = made(b, a);
  back.hash_after ^= 1;
  EXPECT_EQ(code_of([&] {
              (void)merge_chunk_patches(std::vector{there, back}, scratch, kWhat);
            }),
            ErrorCode::corrupt);
}

TEST_F(ChunkPatchTest, ADamagedValueIsRefusedWhateverBitIsWrong) {
  const Bytes a = test::random_bf16(70'000, rng), b = test::nudged_bf16(a, 0.001, rng);
  const std::string value = encode_chunk_patch(made(a, b), 7, "key");
  std::string message;
  for (std::size_t bit = 0; bit < 8 * value.size(); bit += bit < 800 ? 1 : 37) {
    std::string damaged = value;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(code_of([&] { (void)decode_chunk_patch(damaged, 7, "key", kWhat); }, &message),
              ErrorCode::corrupt)
        << bit;
    EXPECT_TRUE(message.starts_with(kWhat)) << message;
  }
  for (std::size_t size = 0; size < value.size(); size += size < 100 ? 1 : 41) {
    EXPECT_EQ(code_of([&] { (void)decode_chunk_patch(value.substr(0, size), 7, "key", kWhat); }),
              ErrorCode::corrupt);
  }
  EXPECT_EQ(code_of([&] { (void)decode_chunk_patch(value + "x", 7, "key", kWhat); }),
            ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { (void)decode_chunk_patch(value, 7, "another key", kWhat); }),
            ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { (void)decode_chunk_patch(value, 6, "key", kWhat); }), ErrorCode::corrupt);
}

// The same with a checksum that is right: the value was written wrong.
TEST_F(ChunkPatchTest, AHostileValueIsRefusedBeforeAnythingIsAllocated) {
  const Bytes a = test::random_bf16(70'000, rng), b = test::nudged_bf16(a, 0.5, rng);
  const std::string value = encode_chunk_patch(made(a, b), 7, "key");
  const auto with = [&](std::size_t at, std::uint64_t number, int bytes) {
    std::string changed = value;
    for (int i = 0; i < bytes; i++) {
      changed[at + static_cast<std::size_t>(i)] = static_cast<char>(number >> (8 * i));
    }
    std::string checksum;
    append_le(checksum, kernels::hash_chunk(as_bytes(std::string_view(changed).substr(8))) ^
                            kernels::hash_chunk(as_bytes("key")));
    return changed.replace(0, 8, checksum);
  };
  EXPECT_EQ(decode_chunk_patch(with(32, 140'000, 4), 7, "key", kWhat), made(a, b));
  const auto refuses = [&](const std::string& changed) {
    return code_of([&] { (void)decode_chunk_patch(changed, 7, "key", kWhat); }) ==
           ErrorCode::corrupt;
  };
  EXPECT_TRUE(refuses(with(32, 0, 4)));           // no bytes
  EXPECT_TRUE(refuses(with(32, 140'001, 4)));     // half an element
  EXPECT_TRUE(refuses(with(32, 0xFFFFFFFE, 4)));  // larger than a chunk
  EXPECT_TRUE(refuses(with(32, 4u << 20, 4)));    // so many blocks follow that are not there
  EXPECT_TRUE(refuses(with(36, 6, 1)));           // an unknown kind
  EXPECT_TRUE(refuses(with(37, 1, 1)));           // another number of blocks
  EXPECT_TRUE(refuses(with(38, 0xFFFFFFFF, 4)));  // a length beyond the end
  EXPECT_TRUE(refuses(with(38, 0, 8)));           // no changes, and bytes left
}

TEST_F(ChunkPatchTest, AMalformedBlockIsRefused) {
  const Bytes a = test::random_bf16(5000, rng), b = test::nudged_bf16(a, 0.01, rng);
  ChunkPatch patch = made(a, b);
  patch.patches[0] = std::byte{9};  // an unknown mode
  EXPECT_EQ(code_of([&] { (void)applied({patch}, a); }), ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { (void)merge_chunk_patches(std::vector{patch}, scratch, kWhat); }),
            ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] { (void)invert_chunk_patch(patch, scratch, kWhat); }), ErrorCode::corrupt);
  patch.lengths[0] += 1;
  EXPECT_EQ(code_of([&] { (void)applied({patch}, a); }), ErrorCode::corrupt);
}

}  // namespace
}  // namespace weightfs
