// XR and XS blocks, and which mode the encoder takes.
#include <gtest/gtest.h>

#include <bit>
#include <initializer_list>

#include "kernels/block/bits.hpp"
#include "tests/kernels/coded_blocks.hpp"
#include "tests/support/sanitized.hpp"

namespace weightfs::kernels {
namespace {

using test::changed_elements;
using test::damaged;
using test::decode_one;
using test::encode_as;
using test::encode_as_ef;
using test::encode_as_raw;
using test::encode_one;
using test::FoundChanges;
using test::get_element;
using test::random_elements;
using test::set_element;
using test::Step;

constexpr std::array kXrSteps = {Step::unit, Step::few, Step::any};
constexpr std::array kModes = {Mode::xr, Mode::xs};

class Xr : public test::KindTest {
 protected:
  /// Elements whose exponents fall off as those of weights do.
  [[nodiscard]] Bytes weights(std::size_t elements) {
    const ExponentField field = exponent_field(GetParam());
    Bytes bytes = random(elements);
    for (std::size_t i = 0; i < elements && field.mask != 0; ++i) {
      const unsigned exponent =
          field.mask / 2 -
          std::min<unsigned>(
              field.mask / 2,
              static_cast<unsigned>(std::countr_zero(rng_() | std::uint64_t{1} << 40)));
      const std::uint32_t rest = get_element(GetParam(), bytes, i) & ~(field.mask << field.shift);
      set_element(GetParam(), bytes, i, rest | exponent << field.shift);
    }
    return bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Xr, testing::ValuesIn(test::kKinds), test::kind_name);

/// Codes with these parameters in both modes, as far as they can express it, and decodes.
void expect_xr_round_trip(Kind kind, const Bytes& before, const Bytes& after, unsigned ebase,
                          unsigned z) {
  for (const Mode mode : kModes) {
    const auto coded = encode_as(mode, kind, test::find(kind, before, after, ebase), z);
    if (!coded || coded->size() > 1 + after.size()) continue;
    ASSERT_EQ(coded->at(0), static_cast<std::byte>(mode));
    ASSERT_TRUE(decode_one(kind, before, *coded) == after) << "ebase " << ebase << " z " << z;
  }
}

void expect_xr_round_trip(Kind kind, const Bytes& before, const Bytes& after) {
  if (before == after) return;
  const FoundChanges found = test::find(kind, before, after);
  expect_xr_round_trip(kind, before, after, found.ebase, choose_z(kind, found.classed));
}

TEST_P(Xr, RoundTripsEverySizeAtEveryDensity) {
  for (const std::size_t elements :
       std::initializer_list<std::size_t>{1, 2, 7, 8, 9, 63, 64, 65, 1000, 65535, 65536}) {
    for (const Bytes& before : {random(elements), weights(elements)}) {
      for (const double share : {0.0, 0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0}) {
        for (const Step how : kXrSteps) {
          SCOPED_TRACE(testing::Message() << elements << " elements, share " << share);
          expect_xr_round_trip(GetParam(), before, changed(before, share, how));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(Xr, RoundTripsWithEveryEbaseAndZ) {
  const unsigned dense = test::kSanitized ? 3 : 1;
  const Bytes before = weights(700);
  for (const double share : {0.0, 0.05, 0.6, 1.0}) {
    for (const Step how : kXrSteps) {
      const Bytes after = changed(before, share, how);
      if (before == after) continue;
      for (unsigned ebase = 0; ebase < 256; ebase += ebase < 40 ? dense : 17) {
        for (unsigned z = 0; z <= kZMax; z += z == 0 ? 1 : dense) {
          expect_xr_round_trip(GetParam(), before, after, ebase, z);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(Xr, RoundTripsEveryPairOfSpecialValues) {
  for (const std::uint32_t from : specials()) {
    Bytes before = weights(64);
    Bytes after = before;
    std::size_t index = 0;
    for (const std::uint32_t to : specials()) {
      before.resize(std::max(before.size(), (index + 1) * width_bytes(GetParam())));
      after.resize(before.size());
      set_element(GetParam(), before, index, from);
      set_element(GetParam(), after, index++, to);
    }
    for (const unsigned z : {0U, 1U, 3U, 12U, kZMax}) {
      expect_xr_round_trip(GetParam(), before, after, 0, z);
      expect_xr_round_trip(GetParam(), before, after, choose_ebase(GetParam(), before), z);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Xr, RoundTripsBlocksInWhichAllChangedButAFew) {
  const Bytes before = weights(kBlockElements);
  for (const std::size_t kept : {0u, 1u, 2u, 100u, 5000u}) {
    Bytes after = flipped(before, 1);
    for (std::size_t i = 0; i < kept; ++i) {
      const std::size_t index = rng_() % kBlockElements;
      set_element(GetParam(), after, index, get_element(GetParam(), before, index));
    }
    expect_xr_round_trip(GetParam(), before, after);
    EXPECT_LT(encode_one(GetParam(), before, after).size(), before.size());
  }
}

// A class is either listed by its changed members, or by the others, or the two are as many.
TEST_P(Xr, ListsTheSmallerPartOfAClass) {
  constexpr std::size_t kElements = 1000;
  const Bytes before(kElements * width_bytes(GetParam()));
  for (const std::size_t count : std::initializer_list<std::size_t>{1, 499, 500, 501, 999, 1000}) {
    Bytes after = before;
    for (std::size_t i = 0; i < count; ++i) set_element(GetParam(), after, i, 1);
    const auto coded = encode_as(Mode::xr, GetParam(), before, after);
    ASSERT_TRUE(coded.has_value());
    EXPECT_TRUE(decode_one(GetParam(), before, *coded) == after);
    ClassCounts total{};
    total[0] = kElements;
    const std::optional<XrParts> parts = cut_xr(*coded, total);
    ASSERT_TRUE(parts.has_value());
    EXPECT_EQ(parts->changed[0], count);
    EXPECT_EQ(parts->listed[0], count <= 500 ? count : kElements - count);
    EXPECT_EQ(parts->inverted, count <= 500 ? 0U : 1U);
  }
}

/// Bits of all differences, as codec.md says it: one after another.
std::uint64_t value_bits(Kind kind, const ClassedChanges& classed, unsigned z) {
  const auto width = static_cast<unsigned>(8 * width_bytes(kind));
  std::uint64_t bits = 0;
  std::uint64_t units = 0;
  std::vector<std::uint64_t> exceptions;
  std::size_t i = 0;
  const auto add_code = [&](std::uint64_t a, unsigned s) {
    const auto b = static_cast<unsigned>(std::bit_width(a + (std::uint64_t{1} << s))) - 1;
    bits += 2 * b - s + 1;
  };
  for (unsigned c = 0; c < kClasses; ++c) {
    for (std::uint32_t j = 0; j < classed.changed[c]; ++j, ++i) {
      const std::uint64_t size = magnitude(classed.difference[i]);
      if (c < z) {
        add_code(size - 1, std::min(width - 1, z - 1 - c));
        continue;
      }
      if (size > 1) {
        add_code(size - 2, 0);
        exceptions.push_back(units);
      }
      ++units;
    }
  }
  const unsigned k = rice(units, exceptions.size());
  std::uint64_t next = 0;
  for (const std::uint64_t number : exceptions) {
    bits += ((number - next) >> k) + 1 + k;
    next = number + 1;
  }
  return bits;
}

TEST_P(Xr, ZIsTheFirstWithTheFewestBits) {
  for (int i = 0; i < 200; ++i) {
    const Bytes before = rng_() % 2 == 0 ? weights(1 + rng_() % 3000) : random(1 + rng_() % 500);
    const double share = 1.0 / static_cast<double>(1 + rng_() % 60);
    Bytes after = changed(before, share, kXrSteps.at(rng_() % 3));
    // Sizes of every length, more of the short ones.
    for (std::size_t j = 0; j < after.size() / width_bytes(GetParam()); ++j) {
      if (rng_() % 7 != 0) continue;
      const std::uint64_t step = rng_() >> (33 + rng_() % 31);
      const std::uint32_t bits = get_element(GetParam(), after, j);
      set_element(GetParam(), after, j, bits + static_cast<std::uint32_t>(step));
    }
    if (before == after) continue;
    const FoundChanges found = test::find(GetParam(), before, after);
    unsigned best = 0;
    for (unsigned z = 1; z < kClasses + 8 * width_bytes(GetParam()); ++z) {
      if (value_bits(GetParam(), found.classed, z) < value_bits(GetParam(), found.classed, best)) {
        best = z;
      }
    }
    ASSERT_EQ(choose_z(GetParam(), found.classed), best);
  }
}

// All elements change by 128 units, which at order 0 are 8 bits of U: 65,536 bytes.
TEST(XrLimits, UHas65535BytesAtMost) {
  const Bytes before(block_bytes(Kind::f32));
  Bytes after = before;
  for (std::size_t i = 0; i < kBlockElements; ++i) set_element(Kind::f32, after, i, 128);
  set_element(Kind::f32, after, 100, 1);
  EXPECT_FALSE(encode_as(Mode::xr, Kind::f32, test::find(Kind::f32, before, after, 0), 1));
  set_element(Kind::f32, after, 200, 64);
  const auto coded = encode_as(Mode::xr, Kind::f32, test::find(Kind::f32, before, after, 0), 1);
  ASSERT_TRUE(coded.has_value());
  EXPECT_TRUE(decode_one(Kind::f32, before, *coded) == after);
}

TEST(XrLimits, XsHasAZOf15AtMost) {
  const Bytes before(100);
  Bytes after = before;
  after[7] = std::byte{1};
  const FoundChanges found = test::find(Kind::u8, before, after, 0);
  EXPECT_TRUE(encode_as(Mode::xs, Kind::u8, found, 15).has_value());
  EXPECT_FALSE(encode_as(Mode::xs, Kind::u8, found, 16).has_value());
  EXPECT_TRUE(encode_as(Mode::xr, Kind::u8, found, 16).has_value());
}

// Ten classes of 200 members, all changed by one unit: no code in U, and the counts of XS take as
// many bytes more as its header has fewer.
TEST(XrChoices, XrIsTakenIfXsIsAsLong) {
  Bytes before(std::size_t{2000} * 2);
  Bytes after = before;
  for (std::size_t i = 0; i < 2000; ++i) {
    const auto bits = static_cast<std::uint32_t>((100 + i % 10) << 7);
    set_element(Kind::bf16, before, i, bits);
    set_element(Kind::bf16, after, i, bits + 1);
  }
  const auto xr = encode_as(Mode::xr, Kind::bf16, before, after);
  const auto xs = encode_as(Mode::xs, Kind::bf16, before, after);
  ASSERT_TRUE(xr && xs);
  ASSERT_EQ(xr->size(), xs->size());
  EXPECT_TRUE(encode_one(Kind::bf16, before, after) == *xr);
}

/// Bits of the counts of an XS block at an order.
std::uint64_t counts_bits(const XrParts& parts, unsigned order) {
  std::uint64_t bits = 0;
  const auto add = [&](std::uint32_t count) {
    const auto b = static_cast<unsigned>(std::bit_width(count + (1U << order))) - 1;
    bits += 2 * b - order + 1;
  };
  for (const std::uint32_t count : parts.changed) add(count);
  add(parts.exception_count);
  return bits;
}

/// Two neighbours never need the same: an order more changes the bits by twice something, less 13.
TEST_P(Xr, TheOrderOfTheCountsIsTheOneWithTheFewestBits) {
  std::size_t looked_at = 0;
  for (int i = 0; i < 300; ++i) {
    const Bytes before = weights(1 + rng_() % 4000);
    const Bytes after = changed(before, 0.001 * (1 + i % 40), Step::few);
    if (before == after) continue;
    const auto coded = encode_as(Mode::xs, GetParam(), test::find(GetParam(), before, after, 0), 1);
    if (!coded) continue;
    const auto parts = cut_xr(*coded, count_classes(GetParam(), before, 0));
    ASSERT_TRUE(parts.has_value());
    unsigned best = 0;
    for (unsigned order = 1; order < 16; ++order) {
      if (counts_bits(*parts, order) < counts_bits(*parts, best)) best = order;
    }
    ASSERT_EQ(std::to_integer<unsigned>(coded->at(3)) >> 4, best);
    ++looked_at;
  }
  EXPECT_GT(looked_at, 100U);
}

TEST(XrChoices, EbasePutsThe98thPercentileIntoTheTopClass) {
  ExponentCounts counts{};
  counts[100] = 49;
  counts[200] = 1;
  EXPECT_EQ(choose_ebase(counts), 100U - 11);
  counts[200] = 2;
  EXPECT_EQ(choose_ebase(counts), 200U - 11);
  counts = {};
  counts[11] = 1;
  EXPECT_EQ(choose_ebase(counts), 0U);
  counts[12] = 1;
  EXPECT_EQ(choose_ebase(counts), 1U);
  counts = {};
  counts[255] = 65536;
  EXPECT_EQ(choose_ebase(counts), 244U);
}

/// The rule of docs/FORMAT.md, with all forms at hand.
Bytes form_by_rule(Kind kind, const Bytes& before, const Bytes& after) {
  const std::optional<Bytes> ef = encode_as_ef(kind, before, after);
  const std::optional<Bytes> xs = encode_as(Mode::xs, kind, before, after);
  std::optional<Bytes> best = encode_as(Mode::xr, kind, before, after);
  if (xs && (!best || xs->size() < best->size())) best = xs;
  if (ef && (!best || 15 * ef->size() <= 16 * best->size())) best = ef;
  const Bytes raw = encode_as_raw(after);
  return best && 8 * best->size() <= 7 * raw.size() ? *best : raw;
}

TEST_P(Xr, TheEncoderTakesTheModeOfTheRule) {
  std::array<std::size_t, 6> taken{};
  for (int i = 0; i < 600; ++i) {
    const std::size_t elements = 1 + rng_() % (std::size_t{1} << (rng_() % 14));
    const Bytes before = rng_() % 2 == 0 ? random(elements) : weights(elements);
    const double share = 1.0 / static_cast<double>(1 + rng_() % (1U << rng_() % 8));
    const Bytes after = changed(before, share, kXrSteps.at(rng_() % 3));
    if (before == after) continue;
    const Bytes coded = encode_one(GetParam(), before, after);
    ASSERT_TRUE(coded == form_by_rule(GetParam(), before, after));
    ASSERT_TRUE(decode_one(GetParam(), before, coded) == after);
    ++taken.at(std::to_integer<std::size_t>(coded[0]));
  }
  for (const Mode mode : {Mode::raw, Mode::ef, Mode::xr, Mode::xs}) {
    EXPECT_GT(taken.at(static_cast<std::size_t>(mode)), 0U) << static_cast<int>(mode);
  }
}

TEST_P(Xr, TheEncoderTakesTheModeOfTheRuleForFullBlocks) {
  const Bytes before = weights(kBlockElements);
  for (const double share : {0.0, 0.001, 0.012, 0.3, 1.0}) {
    for (const Step how : kXrSteps) {
      const Bytes after = changed(before, share, how);
      ASSERT_TRUE(encode_one(GetParam(), before, after) == form_by_rule(GetParam(), before, after));
    }
  }
  const Bytes all_signs = flipped(random(kBlockElements), sign());
  EXPECT_LE(encode_one(GetParam(), before, all_signs).size(), coded_block_bytes_max(GetParam()));
}

TEST_P(Xr, AppendsToWhatIsThere) {
  const Bytes before = weights(3000);
  const Bytes after = changed(before, 0.05, Step::few);
  const Bytes alone = encode_one(GetParam(), before, after);
  Bytes behind = {std::byte{9}};
  encode_block(GetParam(), before, after, test::scratch(), behind);
  ASSERT_EQ(behind.size(), 1 + alone.size());
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), behind.begin() + 1));
}

TEST_P(Xr, IsNotLongerThanAllowed) {
  const Bytes before = weights(3000);
  const Bytes after = changed(before, 0.05, Step::few);
  const FoundChanges found = test::find(GetParam(), before, after);
  for (const Mode mode : kModes) {
    const auto size = encode_as(mode, GetParam(), found, 1).value().size();
    Bytes coded;
    EXPECT_FALSE(encode_xr(GetParam(), mode, found.ebase, 1, found.classed, size - 1, coded));
    EXPECT_TRUE(coded.empty());
    EXPECT_TRUE(encode_xr(GetParam(), mode, found.ebase, 1, found.classed, size, coded));
  }
}

}  // namespace
}  // namespace weightfs::kernels
