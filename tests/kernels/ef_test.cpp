// EF blocks: round trips, what EF cannot express, and what its decoder does with damaged bytes.
#include <gtest/gtest.h>

#include "tests/kernels/coded_blocks.hpp"
#include "tests/support/random.hpp"

namespace weightfs::kernels {
namespace {

using test::changed_elements;
using test::damaged;
using test::decode_one;
using test::encode_as_ef;
using test::get_element;
using test::random_elements;
using test::set_element;
using test::Step;

class Ef : public test::KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, Ef, testing::ValuesIn(test::kKinds), test::kind_name);

TEST_P(Ef, RoundTripsEveryPairOfSpecialValues) {
  for (const std::uint32_t from : specials()) {
    for (const std::uint32_t to : specials()) {
      if (from == to) continue;
      Bytes before = random(64);
      Bytes after = before;
      set_element(GetParam(), before, 17, from);
      set_element(GetParam(), after, 17, to);
      const std::optional<Bytes> coded = encode_as_ef(GetParam(), before, after);
      ASSERT_TRUE(coded.has_value());
      ASSERT_TRUE(decode_one(GetParam(), before, *coded) == after) << from << " to " << to;
    }
  }
}

// Unary codes of every length from 1 to 63, beginning at every bit of a byte.
TEST_P(Ef, RoundTripsClustersWithALongWayBehindThem) {
  const Bytes before = random(4096);
  for (std::size_t clustered = 40; clustered < 48; ++clustered) {
    for (std::size_t last = 64; last < 4096; last += 64) {
      Bytes after = before;
      for (std::size_t i = 0; i < clustered; ++i) {
        set_element(GetParam(), after, i, get_element(GetParam(), before, i) ^ 1);
      }
      set_element(GetParam(), after, last, get_element(GetParam(), before, last) ^ 1);
      const std::optional<Bytes> coded = encode_as_ef(GetParam(), before, after);
      ASSERT_TRUE(coded.has_value());
      ASSERT_TRUE(decode_one(GetParam(), before, *coded) == after) << clustered << ' ' << last;
    }
  }
}

TEST_P(Ef, CannotExpressTooLongAPlane) {
  const Bytes before = random(kBlockElements);
  EXPECT_FALSE(encode_as_ef(GetParam(), before, flipped(before, sign())).has_value());
}

TEST_P(Ef, CannotExpressTooManyExceptions) {
  const Bytes before(block_bytes(GetParam()));
  Bytes after = before;
  for (std::size_t i = 0; i < kBlockElements; ++i) set_element(GetParam(), after, i, 2);
  EXPECT_FALSE(encode_as_ef(GetParam(), before, after).has_value());
  set_element(GetParam(), after, 12345, 1);
  const std::optional<Bytes> ef = encode_as_ef(GetParam(), before, after);
  ASSERT_TRUE(ef.has_value());
  EXPECT_TRUE(decode_one(GetParam(), before, *ef) == after);
}

TEST(EfOfFullBlocks, HoldsAllElements) {
  test::Random rng = test::make_rng();
  const Bytes before = random_elements(Kind::bf16, kBlockElements, rng);
  Bytes after = before;
  for (std::size_t i = 0; i < kBlockElements; ++i) {
    set_element(Kind::bf16, after, i, get_element(Kind::bf16, before, i) ^ 0x8000);
    if (i > 0) set_element(Kind::bf16, after, i, get_element(Kind::bf16, before, i) + 1);
  }
  const std::optional<Bytes> coded = encode_as_ef(Kind::bf16, before, after);
  ASSERT_TRUE(coded.has_value());
  EXPECT_TRUE(decode_one(Kind::bf16, before, *coded) == after);
}

/// Blocks to damage, sparse and dense.
std::vector<Bytes> blocks_to_damage(Kind kind, const Bytes& old_block, test::Random& rng) {
  std::vector<Bytes> blocks;
  for (const double share : {0.0, 0.02, 0.2, 1.0}) {
    for (const Step how : {Step::unit, Step::few, Step::any}) {
      const std::optional<Bytes> coded =
          encode_as_ef(kind, old_block, changed_elements(kind, old_block, share, how, rng));
      if (coded && coded->size() <= 1 + old_block.size()) blocks.push_back(*coded);
    }
  }
  return blocks;
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

TEST_P(Ef, DamagedBlocksAreRefusedOrAreTheFormOfAnotherBlock) {
  const Bytes old_block = random(1537);
  std::size_t accepted = 0;
  std::size_t cases = 0;
  for (const Bytes& coded : blocks_to_damage(GetParam(), old_block, rng_)) {
    for (int i = 0; i < 1000; ++i, ++cases) {
      expect_refused_or_canonical(GetParam(), old_block, damaged(coded, rng_), accepted);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(accepted, 0U);
  EXPECT_LT(accepted, cases);
}

TEST_P(Ef, RandomBytesBehindAHeaderAreRefusedOrAreTheFormOfAnotherBlock) {
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

TEST_P(Ef, BlocksThatAreCutOrExtendedAreRefused) {
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

TEST_P(Ef, AMagnitudeThatDoesNotFitIsRefused) {
  const Bytes old_block = random(kHandMadeElements);
  const std::size_t bits = 8 * width_bytes(GetParam());
  for (std::size_t width = 0; width < 600; ++width) {
    const Bytes coded = one_exception(width, 0);
    // v = 2^width, the magnitude is one more and at most 2^(bits-1) - 1.
    EXPECT_EQ(decode_one(GetParam(), old_block, coded).has_value(), width + 1 < bits) << width;
  }
}

TEST_P(Ef, BytesBehindTheLastUnaryCodeAreRefused) {
  const Bytes old_block = random(kHandMadeElements);
  EXPECT_TRUE(decode_one(GetParam(), old_block, one_exception(3, 0)));
  EXPECT_FALSE(decode_one(GetParam(), old_block, one_exception(3, 1)));
}

}  // namespace
}  // namespace weightfs::kernels
