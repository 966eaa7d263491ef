// Round trips through encode and decode, and what decoders do with damaged bytes.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/coded_blocks.hpp"

namespace weightfs::kernels {
namespace {

using test::count_changed;
using test::decode_one;
using test::encode_as_ef;
using test::encode_one;
using test::get_element;
using test::scratch;
using test::set_element;
using test::Step;

struct CodedChunk {
  std::size_t changed = 0;
  std::vector<std::uint32_t> lengths;
  Bytes coded;
};

CodedChunk encode(Kind kind, ByteSpan old_chunk, ByteSpan new_chunk) {
  CodedChunk chunk;
  chunk.changed = encode_chunk(kind, old_chunk, new_chunk, scratch(), chunk.lengths, chunk.coded);
  return chunk;
}

/// Codes and decodes both, chunk by chunk.
void expect_round_trip(Kind kind, const Bytes& old_bytes, const Bytes& new_bytes) {
  Bytes decoded(new_bytes.size());
  std::size_t changed = 0;
  for (std::size_t at = 0; at < new_bytes.size() || at == 0; at += chunk_bytes(kind)) {
    const std::size_t size = std::min(chunk_bytes(kind), new_bytes.size() - at);
    const ByteSpan old_chunk = ByteSpan(old_bytes).subspan(at, size);
    const CodedChunk chunk = encode(kind, old_chunk, ByteSpan(new_bytes).subspan(at, size));
    ASSERT_EQ(chunk.lengths.size(), block_count(kind, size));
    ASSERT_LE(chunk.coded.size(), size + chunk.lengths.size());
    for (const std::uint32_t length : chunk.lengths) {
      ASSERT_LE(length, coded_block_bytes_max(kind));
    }
    ASSERT_TRUE(decode_chunk(kind, old_chunk, chunk.lengths, chunk.coded,
                             std::span(decoded).subspan(at, size), scratch()));
    changed += chunk.changed;
  }
  EXPECT_TRUE(decoded == new_bytes);
  EXPECT_EQ(changed, count_changed(kind, old_bytes, new_bytes));
}

class Codec : public test::KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, Codec, testing::ValuesIn(test::kKinds), test::kind_name);

TEST_P(Codec, RoundTripsEverySizeOfABlockAtEveryDensity) {
  for (const std::size_t elements :
       std::initializer_list<std::size_t>{0, 1, 2, 63, 64, 65, 66, 1000, 65535, 65536, 65537}) {
    const Bytes before = random(elements);
    for (const double share : {0.0, 0.001, 0.01, 0.1, 0.5, 0.98, 1.0}) {
      for (const Step how : {Step::unit, Step::few, Step::any}) {
        SCOPED_TRACE(testing::Message() << elements << " elements, share " << share);
        expect_round_trip(GetParam(), before, changed(before, share, how));
      }
    }
  }
}

TEST_P(Codec, RoundTripsWholeAndPartialChunks) {
  constexpr std::size_t kChunkElements = kBlockElements * kChunkBlocks;
  for (const std::size_t elements : {kChunkElements, kChunkElements + 1000}) {
    const Bytes before = random(elements);
    for (const double share : {0.0, 0.00001, 0.01, 0.5}) {
      SCOPED_TRACE(testing::Message() << elements << " elements, share " << share);
      expect_round_trip(GetParam(), before, changed(before, share, Step::few));
    }
  }
}

TEST_P(Codec, RoundTripsTheFirstAndTheLastElementAlone) {
  const Bytes before = random(kBlockElements);
  for (const std::size_t index : {std::size_t{0}, kBlockElements - 1}) {
    Bytes after = before;
    set_element(GetParam(), after, index, get_element(GetParam(), before, index) ^ 1);
    expect_round_trip(GetParam(), before, after);
    EXPECT_LT(encode_one(GetParam(), before, after).size(), 20U);
  }
}

TEST_P(Codec, RoundTripsChangesOfTheSignAndOfAllBits) {
  const Bytes before = random(5000);
  for (const std::uint32_t mask : {sign(), sign() - 1, 2 * sign() - 1, 1U}) {
    const Bytes after = flipped(before, mask);
    SCOPED_TRACE(mask);
    expect_round_trip(GetParam(), before, after);
    const std::optional<Bytes> ef = encode_as_ef(GetParam(), before, after);
    ASSERT_TRUE(ef.has_value());
    if (ef->size() <= 1 + after.size()) {
      EXPECT_TRUE(decode_one(GetParam(), before, *ef) == after);
    }
  }
}

TEST_P(Codec, GivesAnUnchangedBlockNoBytes) {
  const Bytes block = random(kBlockElements);
  Bytes coded = {std::byte{9}};
  EXPECT_EQ(encode_block(GetParam(), block, block, scratch(), coded), 0U);
  EXPECT_EQ(coded.size(), 1U);
  EXPECT_TRUE(decode_one(GetParam(), block, {}) == block);
  EXPECT_TRUE(decode_one(GetParam(), block, {static_cast<std::byte>(Mode::same)}) == block);
}

TEST_P(Codec, AppendsToWhatIsThere) {
  const Bytes before = random(2 * kBlockElements);
  const Bytes after = changed(before, 0.01, Step::unit);
  const CodedChunk alone = encode(GetParam(), before, after);
  CodedChunk behind{0, {7}, {std::byte{9}}};
  encode_chunk(GetParam(), before, after, scratch(), behind.lengths, behind.coded);
  ASSERT_EQ(behind.lengths.size(), 3U);
  EXPECT_EQ(behind.lengths[0], 7U);
  EXPECT_EQ(behind.coded.at(0), std::byte{9});
  EXPECT_TRUE(std::equal(alone.coded.begin(), alone.coded.end(), behind.coded.begin() + 1,
                         behind.coded.end()));
}

TEST_P(Codec, NeedsNoAlignment) {
  const Bytes before = random(3000);
  const Bytes after = changed(before, 0.05, Step::few);
  Bytes shifted_old(before.size() + 1);
  Bytes shifted_new(after.size() + 3);
  std::copy(before.begin(), before.end(), shifted_old.begin() + 1);
  std::copy(after.begin(), after.end(), shifted_new.begin() + 3);
  const ByteSpan old_block = ByteSpan(shifted_old).subspan(1);
  const CodedChunk chunk = encode(GetParam(), old_block, ByteSpan(shifted_new).subspan(3));
  EXPECT_TRUE(chunk.coded == encode_one(GetParam(), before, after));
  std::fill(shifted_new.begin(), shifted_new.end(), std::byte{0});
  ASSERT_TRUE(decode_chunk(GetParam(), old_block, chunk.lengths, chunk.coded,
                           std::span(shifted_new).subspan(3), scratch()));
  EXPECT_TRUE(std::equal(after.begin(), after.end(), shifted_new.begin() + 3));
}

TEST_P(Codec, UnknownModesAreRefused) {
  const Bytes old_block = random(50);
  for (unsigned mode = 4; mode < 256; ++mode) {
    if (static_cast<Mode>(mode) == Mode::xs) continue;
    for (const std::size_t size : {std::size_t{1}, std::size_t{20}, 1 + old_block.size()}) {
      EXPECT_FALSE(decode_one(GetParam(), old_block, Bytes(size, static_cast<std::byte>(mode))));
    }
  }
}

TEST_P(Codec, AChunkNeedsOneLengthForEachBlock) {
  const Bytes before = random(2 * kBlockElements + 10);
  const Bytes after = changed(before, 0.001, Step::unit);
  CodedChunk chunk = encode(GetParam(), before, after);
  Bytes decoded(before.size());
  ASSERT_TRUE(decode_chunk(GetParam(), before, chunk.lengths, chunk.coded, decoded, scratch()));

  chunk.lengths.push_back(0);
  EXPECT_FALSE(decode_chunk(GetParam(), before, chunk.lengths, chunk.coded, decoded, scratch()));
  chunk.lengths.resize(2);
  EXPECT_FALSE(decode_chunk(GetParam(), before, chunk.lengths, chunk.coded, decoded, scratch()));
  EXPECT_FALSE(decode_chunk(GetParam(), before, {}, {}, decoded, scratch()));
}

TEST_P(Codec, TheLengthsOfAChunkMustAddUp) {
  const Bytes before = random(2 * kBlockElements + 10);
  const Bytes after = changed(before, 0.01, Step::unit);
  const CodedChunk chunk = encode(GetParam(), before, after);
  Bytes decoded(before.size());
  const auto decodes = [&](std::vector<std::uint32_t> lengths, const Bytes& coded) {
    return decode_chunk(GetParam(), before, lengths, coded, decoded, scratch());
  };
  for (std::size_t i = 0; i < chunk.lengths.size(); ++i) {
    for (const std::uint32_t change : {1U, 0xFFFF'FFFFU, 0x8000'0000U}) {
      std::vector<std::uint32_t> lengths = chunk.lengths;
      lengths[i] += change;
      EXPECT_FALSE(decodes(lengths, chunk.coded));
    }
  }
  Bytes longer = chunk.coded;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decodes(chunk.lengths, longer));
  EXPECT_FALSE(decodes({0, 0, 0}, chunk.coded));
  EXPECT_TRUE(decodes({0, 0, 0}, {}));
  EXPECT_TRUE(decoded == before);
}

TEST_P(Codec, AChunkOfNoBytesHasNoBlocks) {
  const CodedChunk chunk = encode(GetParam(), {}, {});
  EXPECT_TRUE(chunk.lengths.empty());
  EXPECT_TRUE(decode_chunk(GetParam(), {}, {}, {}, {}, scratch()));
  const Bytes rest(1);
  EXPECT_FALSE(decode_chunk(GetParam(), {}, {}, rest, {}, scratch()));
}

}  // namespace
}  // namespace weightfs::kernels
