// Round trips through encode and decode, and what decoders do with damaged bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "kernels/decode.hpp"
#include "kernels/ef.hpp"
#include "kernels/encode.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

using test::changed_elements;
using test::count_changed;
using test::get_element;
using test::random_elements;
using test::scratch;
using test::set_element;
using test::Step;

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

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

Bytes encode_one(Kind kind, const Bytes& old_block, const Bytes& new_block) {
  Bytes coded;
  encode_block(kind, old_block, new_block, scratch(), coded);
  return coded;
}

/// The block as EF, whatever its size; nullopt if EF cannot express it.
std::optional<Bytes> encode_as_ef(Kind kind, const Bytes& old_block, const Bytes& new_block) {
  const auto changes = std::make_unique<Changes>();
  find_changes(kind, old_block, new_block, *changes);
  Bytes coded;
  if (!encode_ef(*changes, new_block.size() / width_bytes(kind), kNoLimit, coded)) {
    EXPECT_TRUE(coded.empty());
    return std::nullopt;
  }
  return coded;
}

/// Decodes into memory of exactly the block's size, so that sanitizers see each step beyond it.
std::optional<Bytes> decode_one(Kind kind, const Bytes& old_block, const Bytes& coded) {
  Bytes decoded(old_block.size());
  if (!decode_block(kind, old_block, coded, decoded, scratch())) return std::nullopt;
  return decoded;
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

class Codec : public testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] Bytes random(std::size_t elements) {
    return random_elements(GetParam(), elements, rng_);
  }
  [[nodiscard]] Bytes changed(const Bytes& old, double share, Step how) {
    return changed_elements(GetParam(), old, share, how, rng_);
  }
  /// A copy with these bits turned over in every element.
  [[nodiscard]] Bytes flipped(const Bytes& old, std::uint32_t mask) const {
    Bytes bytes = old;
    for (std::size_t i = 0; i < old.size() / width_bytes(GetParam()); ++i) {
      set_element(GetParam(), bytes, i, get_element(GetParam(), old, i) ^ mask);
    }
    return bytes;
  }
  [[nodiscard]] std::uint32_t sign() const { return 1U << (8 * width_bytes(GetParam()) - 1); }

  std::mt19937_64 rng_ = test::make_rng();
};

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

TEST_P(Codec, RoundTripsEveryPairOfSpecialValuesAsEf) {
  const std::uint32_t all = 2 * sign() - 1;
  const std::vector<std::uint32_t> values = {0, 1, sign() - 1, sign(), sign() + 1, all, all - 1};
  std::vector<std::uint32_t> specials = values;
  // Infinities and the NaNs beside them, for any place of the exponent.
  for (unsigned bit = 1; bit + 1 < 8 * width_bytes(GetParam()); ++bit) {
    const std::uint32_t exponent = (sign() - 1) & ~((1U << bit) - 1);
    specials.insert(specials.end(), {exponent, exponent + 1, exponent | sign()});
  }
  for (const std::uint32_t from : specials) {
    for (const std::uint32_t to : specials) {
      Bytes before = random(64);
      Bytes after = before;
      set_element(GetParam(), before, 17, from);
      set_element(GetParam(), after, 17, to);
      const Bytes coded = encode_one(GetParam(), before, after);
      if (from != to) {
        ASSERT_EQ(coded.at(0), static_cast<std::byte>(Mode::ef));
      }
      ASSERT_TRUE(decode_one(GetParam(), before, coded) == after) << from << " to " << to;
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

TEST_P(Codec, TakesEfOnlyIfItSavesAnEighth) {
  std::size_t taken = 0;
  std::size_t refused = 0;
  for (int i = 0; i < 300; ++i) {
    const Bytes before = random(1 + rng_() % 300);
    const double share = static_cast<double>(1 + rng_() % 100) / 100;
    const Bytes after = changed(before, share, static_cast<Step>(rng_() % 3));
    if (before == after) continue;
    const std::optional<Bytes> ef = encode_as_ef(GetParam(), before, after);
    ASSERT_TRUE(ef.has_value());
    const bool takes_ef = 8 * ef->size() <= 7 * (1 + after.size());
    Bytes raw = {static_cast<std::byte>(Mode::raw)};
    raw.insert(raw.end(), after.begin(), after.end());
    EXPECT_TRUE(encode_one(GetParam(), before, after) == (takes_ef ? *ef : raw));
    ++(takes_ef ? taken : refused);
  }
  EXPECT_GT(taken, 0U);
  EXPECT_GT(refused, 0U);
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

// Unary codes of every length from 1 to 63, beginning at every bit of a byte.
TEST_P(Codec, RoundTripsClustersWithALongWayBehindThem) {
  const Bytes before = random(4096);
  for (std::size_t clustered = 40; clustered < 48; ++clustered) {
    for (std::size_t last = 64; last < 4096; last += 64) {
      Bytes after = before;
      for (std::size_t i = 0; i < clustered; ++i) {
        set_element(GetParam(), after, i, get_element(GetParam(), before, i) ^ 1);
      }
      set_element(GetParam(), after, last, get_element(GetParam(), before, last) ^ 1);
      const Bytes coded = encode_one(GetParam(), before, after);
      ASSERT_EQ(coded.at(0), static_cast<std::byte>(Mode::ef));
      ASSERT_TRUE(decode_one(GetParam(), before, coded) == after) << clustered << ' ' << last;
    }
  }
}

TEST_P(Codec, CodesABlockWithTooLongAPlaneForEfAsRaw) {
  const Bytes before = random(kBlockElements);
  const Bytes after = flipped(before, sign());
  EXPECT_FALSE(encode_as_ef(GetParam(), before, after).has_value());
  const Bytes coded = encode_one(GetParam(), before, after);
  EXPECT_EQ(coded.size(), coded_block_bytes_max(GetParam()));
  EXPECT_EQ(coded.at(0), static_cast<std::byte>(Mode::raw));
}

TEST_P(Codec, CodesABlockWithMoreExceptionsThanEfCanCountAsRaw) {
  const Bytes before(block_bytes(GetParam()));
  Bytes after = before;
  for (std::size_t i = 0; i < kBlockElements; ++i) set_element(GetParam(), after, i, 2);
  EXPECT_FALSE(encode_as_ef(GetParam(), before, after).has_value());
  EXPECT_EQ(encode_one(GetParam(), before, after).at(0), static_cast<std::byte>(Mode::raw));
  set_element(GetParam(), after, 12345, 1);
  const std::optional<Bytes> ef = encode_as_ef(GetParam(), before, after);
  ASSERT_TRUE(ef.has_value());
  EXPECT_TRUE(decode_one(GetParam(), before, *ef) == after);
}

TEST(CodecOfFullBlocks, EfHoldsAllElements) {
  std::mt19937_64 rng = test::make_rng();
  const Bytes before = random_elements(Kind::bf16, kBlockElements, rng);
  Bytes after = before;
  for (std::size_t i = 0; i < kBlockElements; ++i) {
    set_element(Kind::bf16, after, i, get_element(Kind::bf16, before, i) ^ 0x8000);
    if (i > 0) set_element(Kind::bf16, after, i, get_element(Kind::bf16, before, i) + 1);
  }
  const Bytes coded = encode_one(Kind::bf16, before, after);
  EXPECT_EQ(coded.at(0), static_cast<std::byte>(Mode::ef));
  EXPECT_TRUE(decode_one(Kind::bf16, before, coded) == after);
}

/// Blocks to damage: sparse and dense EF, and raw.
std::vector<Bytes> blocks_to_damage(Kind kind, const Bytes& old_block, std::mt19937_64& rng) {
  std::vector<Bytes> blocks;
  for (const double share : {0.0, 0.02, 0.2, 1.0}) {
    for (const Step how : {Step::unit, Step::few, Step::any}) {
      blocks.push_back(
          encode_one(kind, old_block, changed_elements(kind, old_block, share, how, rng)));
    }
  }
  return blocks;
}

Bytes damaged(Bytes coded, std::mt19937_64& rng) {
  const std::size_t flips = 1 + rng() % 3;
  for (std::size_t i = 0; i < flips && !coded.empty(); ++i) {
    // Every other damage hits the header, where most of the checks are.
    const std::size_t reach =
        rng() % 2 == 0 ? std::min<std::size_t>(coded.size(), 8) : coded.size();
    coded[rng() % reach] ^= static_cast<std::byte>(1U << (rng() % 8));
  }
  if (rng() % 4 == 0) coded.resize(rng() % (coded.size() + 9));
  return coded;
}

/// What is accepted must be what an encoder writes: each block has exactly one EF form.
void expect_refused_or_canonical(Kind kind, const Bytes& old_block, const Bytes& coded,
                                 std::size_t& accepted) {
  const std::optional<Bytes> decoded = decode_one(kind, old_block, coded);
  if (!decoded) return;
  ++accepted;
  if (!coded.empty() && coded[0] == static_cast<std::byte>(Mode::ef)) {
    ASSERT_TRUE(encode_as_ef(kind, old_block, *decoded) == coded);
  }
}

TEST_P(Codec, DamagedBlocksAreRefusedOrAreTheFormOfAnotherBlock) {
  const Bytes old_block = random(1537);
  std::size_t accepted = 0;
  std::size_t cases = 0;
  for (const Bytes& coded : blocks_to_damage(GetParam(), old_block, rng_)) {
    for (int i = 0; i < 1000; ++i, ++cases) {
      Bytes bytes = damaged(coded, rng_);
      bytes.shrink_to_fit();
      expect_refused_or_canonical(GetParam(), old_block, bytes, accepted);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(accepted, 0U);
  EXPECT_LT(accepted, cases);
}

TEST_P(Codec, RandomBytesBehindAnEfHeaderAreRefusedOrAreTheFormOfAnotherBlock) {
  std::size_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Bytes old_block = random(1 + rng_() % 40);
    Bytes coded(rng_() % (1 + old_block.size() + 1));
    for (std::byte& byte : coded) byte = static_cast<std::byte>(rng_() & rng_());
    const std::array<std::uint8_t, 7> header = {
        2, static_cast<std::uint8_t>(rng_() % 6), 0, static_cast<std::uint8_t>(rng_() % 8),
        0, static_cast<std::uint8_t>(rng_() % 4), 0};
    for (std::size_t at = 0; at < std::min(coded.size(), header.size()); ++at) {
      coded[at] = static_cast<std::byte>(header.at(at));
    }
    expect_refused_or_canonical(GetParam(), old_block, coded, accepted);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Codec, BlocksThatAreCutOrExtendedAreRefused) {
  const Bytes old_block = random(700);
  for (const Bytes& coded : blocks_to_damage(GetParam(), old_block, rng_)) {
    if (coded.empty()) continue;
    for (std::size_t size = 1; size < coded.size(); ++size) {
      const Bytes cut(coded.begin(), coded.begin() + static_cast<std::ptrdiff_t>(size));
      ASSERT_FALSE(decode_one(GetParam(), old_block, cut).has_value()) << size;
    }
    for (const std::byte extra : {std::byte{0}, std::byte{1}, std::byte{0xFF}}) {
      Bytes extended = coded;
      extended.push_back(extra);
      ASSERT_FALSE(decode_one(GetParam(), old_block, extended).has_value());
    }
  }
}

constexpr std::size_t kHandMadeElements = 1000;  // rice(1000, 1) = 9: two bytes of low bits
constexpr std::size_t kHandMadeLowsBytes = 2;

/// Bytes of an EF block with one change that is an exception, put together by hand: its position
/// is 0 (so the first code and the low bits are 0), and so is its number.
Bytes one_exception(std::size_t width, std::size_t slack_bytes) {
  constexpr std::size_t kHeaderBytes = 7;
  const std::size_t unary_bytes = (2 + width + 1 + 7) / 8 + slack_bytes;
  Bytes coded(kHeaderBytes + unary_bytes + 1 + kHandMadeLowsBytes + (width + 7) / 8);
  coded[0] = static_cast<std::byte>(Mode::ef);
  coded[1] = static_cast<std::byte>(unary_bytes);
  coded[5] = std::byte{1};
  coded[kHeaderBytes] |= std::byte{0b11};
  coded[kHeaderBytes + (2 + width) / 8] |= static_cast<std::byte>(1U << ((2 + width) % 8));
  return coded;
}

TEST_P(Codec, AMagnitudeThatDoesNotFitIsRefused) {
  const Bytes old_block = random(kHandMadeElements);
  const std::size_t bits = 8 * width_bytes(GetParam());
  for (std::size_t width = 0; width < 600; ++width) {
    const Bytes coded = one_exception(width, 0);
    // v = 2^width, the magnitude is one more and at most 2^(bits-1) - 1.
    EXPECT_EQ(decode_one(GetParam(), old_block, coded).has_value(), width + 1 < bits) << width;
  }
}

TEST_P(Codec, BytesBehindTheLastUnaryCodeAreRefused) {
  const Bytes old_block = random(kHandMadeElements);
  EXPECT_TRUE(decode_one(GetParam(), old_block, one_exception(3, 0)));
  EXPECT_FALSE(decode_one(GetParam(), old_block, one_exception(3, 1)));
}

TEST_P(Codec, UnknownModesAreRefused) {
  const Bytes old_block = random(50);
  for (unsigned mode = 3; mode < 256; ++mode) {
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
