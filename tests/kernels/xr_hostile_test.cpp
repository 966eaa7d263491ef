// What the decoder of XR and XS does with damaged blocks, and with blocks put together by hand.
#include <gtest/gtest.h>

#include <string>

#include "tests/kernels/coded_blocks.hpp"
#include "tests/support/random.hpp"

namespace weightfs::kernels {
namespace {

using test::changed_elements;
using test::damaged;
using test::decode_one;
using test::encode_as;
using test::FoundChanges;
using test::random_elements;
using test::Step;

class XrHostile : public test::KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, XrHostile, testing::ValuesIn(test::kKinds), test::kind_name);

/// Blocks of both modes, sparse and dense, with different z.
std::vector<Bytes> xr_blocks_to_damage(Kind kind, const Bytes& old_block, test::Random& rng) {
  std::vector<Bytes> blocks;
  for (const double share : {0.0, 0.02, 0.2, 0.7, 1.0}) {
    for (const Step how : {Step::unit, Step::few, Step::any}) {
      const Bytes after = changed_elements(kind, old_block, share, how, rng);
      if (after == old_block) continue;
      const FoundChanges found = test::find(kind, old_block, after);
      for (const Mode mode : {Mode::xr, Mode::xs}) {
        const auto coded = encode_as(mode, kind, found, static_cast<unsigned>(rng() % 14));
        if (coded && coded->size() <= 1 + old_block.size()) blocks.push_back(*coded);
      }
    }
  }
  return blocks;
}

/// All of a block that is not the form of its counts.
std::optional<XrParts> parts_of(Kind kind, const Bytes& old_block, const Bytes& coded) {
  return cut_xr(coded, count_classes(kind, old_block, ebase_of(coded).value()));
}

/// What is accepted must be what an encoder writes for what was decoded, but for the width of the
/// counts.
void expect_xr_refused_or_canonical(Kind kind, const Bytes& old_block, const Bytes& coded,
                                    std::size_t& accepted) {
  const std::optional<Bytes> decoded = decode_one(kind, old_block, coded);
  if (!decoded) return;
  ++accepted;
  if (coded.empty()) return;
  const auto mode = static_cast<Mode>(coded[0]);
  if (mode != Mode::xr && mode != Mode::xs) return;
  const auto given = parts_of(kind, old_block, coded);
  ASSERT_TRUE(given.has_value());
  const auto again =
      encode_as(mode, kind, test::find(kind, old_block, *decoded, given->ebase), given->z);
  ASSERT_TRUE(again.has_value());
  const auto expected = parts_of(kind, old_block, *again);
  ASSERT_TRUE(expected.has_value());
  ASSERT_EQ(given->changed, expected->changed);
  ASSERT_EQ(given->exception_count, expected->exception_count);
  ASSERT_TRUE(std::equal(given->unary.begin(), given->unary.end(), expected->unary.begin(),
                         expected->unary.end()));
  ASSERT_TRUE(std::equal(given->rest.begin(), given->rest.end(), expected->rest.begin(),
                         expected->rest.end()));
}

TEST_P(XrHostile, DamagedBlocksAreRefusedOrAreTheFormOfAnotherBlock) {
  const Bytes old_block = random(1537);
  std::size_t accepted = 0;
  std::size_t cases = 0;
  for (const Bytes& coded : xr_blocks_to_damage(GetParam(), old_block, rng_)) {
    for (int i = 0; i < 500; ++i, ++cases) {
      expect_xr_refused_or_canonical(GetParam(), old_block, damaged(coded, rng_), accepted);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(accepted, 0U);
  EXPECT_LT(accepted, cases);
}

TEST_P(XrHostile, BlocksOnAWrongBaseAreRefusedOrGiveABlock) {
  for (int i = 0; i < 50; ++i) {
    const Bytes base = random(300);
    const Bytes other = changed(base, 0.01, Step::any);
    for (const Bytes& coded : xr_blocks_to_damage(GetParam(), base, rng_)) {
      std::size_t accepted = 0;
      expect_xr_refused_or_canonical(GetParam(), other, coded, accepted);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(XrHostile, RandomBytesBehindAHeaderAreRefusedOrAreTheFormOfAnotherBlock) {
  std::size_t accepted = 0;
  for (int i = 0; i < 30'000; ++i) {
    const Bytes old_block = random(8 + rng_() % 40);
    Bytes coded(8 + rng_() % (old_block.size() - 6));
    for (std::byte& byte : coded) byte = static_cast<std::byte>(rng_() & rng_());
    const bool is_short = rng_() % 2 == 0;
    coded[0] = static_cast<std::byte>(is_short ? Mode::xs : Mode::xr);
    coded[1] = static_cast<std::byte>(rng_() % 4 == 0 ? rng_() % 256 : 0);
    coded[2] = static_cast<std::byte>(rng_() % 6);
    coded[3] = static_cast<std::byte>(is_short ? rng_() % 64 : 0);
    if (!is_short) {
      coded[4] = static_cast<std::byte>(rng_() % 48);
      coded[5] = static_cast<std::byte>(1 + rng_() % 3);
    }
    expect_xr_refused_or_canonical(GetParam(), old_block, coded, accepted);
    if (HasFatalFailure()) return;
  }
}

TEST_P(XrHostile, BlocksThatAreCutOrExtendedAreRefused) {
  const Bytes old_block = random(500);
  for (const Bytes& coded : xr_blocks_to_damage(GetParam(), old_block, rng_)) {
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

TEST_P(XrHostile, AnEmptyBlockHasNoChange) {
  for (const Mode mode : {Mode::xr, Mode::xs}) {
    EXPECT_FALSE(decode_one(GetParam(), {}, {static_cast<std::byte>(mode)}).has_value());
  }
}

/// Bits of a plane, the first one is bit 0.
using Bits = std::string;

Bits field(std::uint64_t value, unsigned width) {
  Bits bits;
  for (unsigned i = 0; i < width; ++i) bits += i < 64 && (value >> i & 1) != 0 ? '1' : '0';
  return bits;
}

Bits unary(std::size_t zeros) { return Bits(zeros, '0') + '1'; }

Bits padded(Bits bits) { return bits + Bits((8 - bits.size() % 8) % 8, '0'); }

Bytes pack(const Bits& bits) {
  Bytes bytes(bits.size() / 8);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] == '1') bytes[i / 8] |= static_cast<std::byte>(1U << i % 8);
  }
  return bytes;
}

/// An XR block of changes that are all of class 0, part by part.
struct HandMade {
  unsigned z = 0;
  unsigned count_width = 17;
  std::uint64_t changed = 1, exceptions = 0;
  Bits unary{}, signs{}, lows{}, values{};

  [[nodiscard]] Bytes block() const {
    const Bits u = padded(unary);
    const Bits header =
        field(3, 8) + field(0, 8) + field(u.size() / 8, 16) + field(z, 8) + field(count_width, 8);
    const Bits counts = field(changed, count_width) + Bits(std::size_t{11} * count_width, '0') +
                        field(exceptions, count_width);
    return pack(header + padded(counts) + u + padded(signs) + padded(lows) + padded(values));
  }
};

/// A full block of f32 zeros, the largest there is.
const Bytes& zeros() {
  static const Bytes kZeros(block_bytes(Kind::f32));
  return kZeros;
}

bool decodes(const HandMade& made) {
  return decode_one(Kind::f32, zeros(), made.block()).has_value();
}

TEST(XrByHand, OneChangeDecodes) {
  HandMade made{.unary = unary(0), .signs = "0", .lows = field(7, 15)};
  const auto decoded = decode_one(Kind::f32, zeros(), made.block());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(test::get_element(Kind::f32, *decoded, 7), 1U);
  made.count_width = 1;
  EXPECT_TRUE(decodes(made));
}

TEST(XrByHand, ParametersOutOfRangeAreRefused) {
  HandMade made{.unary = unary(0), .signs = "0", .lows = field(7, 15)};
  for (const unsigned width : {0U, 18U, 64U, 255U}) {
    made.count_width = width;
    EXPECT_FALSE(decodes(made)) << width;
  }
  // With z = 12 and above the change is direct, of order min(z - 1, 31), and its code has b = 31.
  made.count_width = 17;
  made.unary = unary(0) + unary(0);
  for (const unsigned z : {1U, 2U, 31U, 32U, 33U, 43U, 44U, 255U}) {
    made.z = z;
    made.values = Bits(std::min(31U, z - 1), '0');
    EXPECT_EQ(decodes(made), z <= 43) << z;
  }
}

TEST(XrByHand, CountsThatContradictTheOldBlockAreRefused) {
  HandMade made{.unary = unary(0), .signs = "0", .lows = field(7, 15)};
  made.changed = 0;
  EXPECT_FALSE(decodes(made));
  made = {.changed = 65537, .unary = "", .signs = Bits(65537, '0')};
  EXPECT_FALSE(decodes(made));
  made = {.exceptions = 2, .unary = Bits(5, '1'), .signs = "0", .lows = field(7, 15)};
  EXPECT_FALSE(decodes(made));
  // A change of class 2, which has no members.
  Bytes block = HandMade{.unary = unary(0), .signs = "0", .lows = field(7, 15)}.block();
  block.at(6) = std::byte{0};
  block.at(6 + 2 * 17 / 8) = std::byte{4};
  EXPECT_FALSE(decode_one(Kind::f32, zeros(), block).has_value());
}

// All elements changed: nothing is listed, so there is no code, and n has 17 bits.
TEST(XrByHand, ABlockWithoutCodesDecodes) {
  HandMade made{.changed = 65536, .signs = Bits(65536, '0')};
  const auto decoded = decode_one(Kind::f32, zeros(), made.block());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(test::get_element(Kind::f32, *decoded, 65535), 1U);
  made.unary = Bits(8, '0');
  EXPECT_FALSE(decodes(made));
  made.unary = "1";
  EXPECT_FALSE(decodes(made));
}

// Ranks are below 2^16, but what a hostile list adds up to passes 2^32, and would come back to a
// good rank in 32 bits.
TEST(XrByHand, GapsBeyond32BitsAreRefused) {
  HandMade made{.signs = "0", .lows = field(7, 15)};
  made.unary = unary(1);
  EXPECT_TRUE(decodes(made));
  for (const std::size_t high : {std::size_t{2}, std::size_t{1} << 16, std::size_t{1} << 17}) {
    made.unary = unary(high);
    EXPECT_FALSE(decodes(made)) << high;
  }
  // Two ranks, each gap below 2^32, with 14 low bits; the sum is 2^32 + 2.
  made = {.changed = 2, .signs = "00", .lows = field(1, 14) + field(0, 14)};
  made.unary = unary(std::size_t{1} << 17) + unary(std::size_t{1} << 17);
  EXPECT_FALSE(decodes(made));
}

// Two members are listed as unchanged; the first is the last of all, so one more seems to have
// changed than there are values for.
TEST(XrByHand, AListThatNamesTooManyAsChangedIsRefused) {
  HandMade made{.z = 1, .changed = 65534};
  made.signs = Bits(65534, '0');
  made.lows = field(16383, 14) + field(0, 14);
  for (const std::size_t high : {0u, 1u, 2u, 3u}) {
    made.unary = unary(high) + unary(0) + Bits(65534, '1');
    EXPECT_EQ(decodes(made), high < 3) << high;
  }
}

TEST(XrByHand, ExceptionsBeyondTheUnitChangesAreRefused) {
  // All elements changed by one unit, but for one exception with 15 low bits; unary(0) is its
  // value.
  const auto with_gap = [](std::size_t high) {
    return HandMade{.changed = 65536,
                    .exceptions = 1,
                    .unary = unary(high) + unary(0),
                    .signs = Bits(65536, '0'),
                    .lows = field(7, 15)};
  };
  const auto decoded = decode_one(Kind::f32, zeros(), with_gap(1).block());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(test::get_element(Kind::f32, *decoded, 32768 + 7), 2U);
  EXPECT_FALSE(decodes(with_gap(2)));
  EXPECT_FALSE(decodes(with_gap(std::size_t{1} << 17)));
}

TEST(XrByHand, MagnitudesOutOfRangeAreRefused) {
  HandMade made{.lows = field(7, 15)};
  // As an exception: v = 2^b, |d| = v + 1.
  made.exceptions = 1;
  for (const std::size_t b : {0u, 1u, 29u, 30u, 31u, 32u, 63u, 64u, 500u}) {
    made.unary = unary(0) + unary(0) + unary(b);
    made.values = Bits(b, '0');
    for (const char sign : {'0', '1'}) {
      made.signs = sign;
      EXPECT_EQ(decodes(made), b <= 30) << b;
    }
  }
  // |d| = 2^31 has a sign.
  made.unary = unary(0) + unary(0) + unary(30);
  made.values = Bits(30, '1');
  made.signs = "0";
  EXPECT_FALSE(decodes(made));
  made.signs = "1";
  EXPECT_TRUE(decodes(made));
}

// |d| = 2^32, which is 0 in 32 bits, in a block of so many changes that it has a decoder of its own.
TEST(XrByHand, AMagnitudeOf2To32InADenseBlockIsRefused) {
  HandMade made{.changed = 65536, .exceptions = 1, .lows = field(7, 15)};
  for (const char sign : {'0', '1'}) {
    made.signs = Bits(65536, sign);
    for (const std::size_t b : {0u, 29u, 31u}) {
      made.unary = unary(1) + unary(b);
      made.values = Bits(b, '1');
      EXPECT_EQ(decodes(made), b < 31) << b;
    }
  }
}

TEST(XrByHand, PaddingsThatAreNotZeroAreRefused) {
  HandMade good{.z = 3, .changed = 3, .exceptions = 0};
  good.unary = Bits(6, '1');
  good.signs = "000";
  good.lows = field(0, 14) + field(0, 14) + field(0, 14);
  good.values = Bits(6, '0');
  ASSERT_TRUE(decodes(good));
  const auto refuses = [&](auto edit) {
    HandMade made = good;
    edit(made);
    return !decodes(made);
  };
  EXPECT_TRUE(refuses([](HandMade& made) { made.signs += '1'; }));
  EXPECT_TRUE(refuses([](HandMade& made) { made.signs += Bits(4, '0') + '1'; }));
  EXPECT_TRUE(refuses([](HandMade& made) { made.lows += Bits(5, '0') + '1'; }));
  EXPECT_TRUE(refuses([](HandMade& made) { made.values += '1'; }));
  EXPECT_TRUE(refuses([](HandMade& made) { made.values += Bits(8, '0'); }));
  Bytes counts = good.block();
  counts[6 + 13 * 17 / 8] |= std::byte{0x80};
  EXPECT_FALSE(decode_one(Kind::f32, zeros(), counts).has_value());
}

}  // namespace
}  // namespace weightfs::kernels
