// Variants guess ebase from the block before; the guess must never be seen in the bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "kernels/dispatch/variant_table.hpp"
#include "kernels/scalar/xr.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

/// Random signs and mantissas; exponents from `largest` down, each half as often as the one above.
Bytes elements_below(Kind kind, std::size_t elements, unsigned largest, test::Random& rng) {
  const ExponentField field = exponent_field(kind);
  Bytes bytes = test::random_elements(kind, elements, rng);
  for (std::size_t i = 0; i < elements; ++i) {
    const unsigned exponent =
        largest - std::min(largest, static_cast<unsigned>(std::countr_zero(rng() | 1ULL << 63)));
    const std::uint32_t rest = test::get_element(kind, bytes, i) & ~(field.mask << field.shift);
    test::set_element(kind, bytes, i, rest | (exponent & field.mask) << field.shift);
  }
  return bytes;
}

class EbaseGuess : public testing::TestWithParam<Kind> {
 protected:
  /// Codes the blocks one after another with the same scratch memory.
  void expect_same_bytes(const std::vector<Bytes>& blocks) {
    for (const Variant& variant : variants()) {
      SCOPED_TRACE(variant.name);
      for (const Bytes& before : blocks) {
        const Bytes after = test::changed_elements(GetParam(), before, 0.02, test::Step::few, rng_);
        Bytes coded;
        Bytes expected;
        Scratch fresh;
        variant.encode_block(GetParam(), before, after, test::scratch(), coded);
        variants().front().encode_block(GetParam(), before, after, fresh, expected);
        EXPECT_TRUE(coded == expected);
      }
    }
  }

  test::Random rng_ = test::make_rng();
};
INSTANTIATE_TEST_SUITE_P(Kinds, EbaseGuess, testing::ValuesIn(test::kKinds), test::kind_name);

TEST_P(EbaseGuess, IsNotSeenWhereExponentsJumpFromBlockToBlock) {
  const unsigned largest = exponent_field(GetParam()).mask;
  std::vector<Bytes> blocks;
  for (const unsigned exponent : {largest, 0U, largest / 2, largest / 2 + 1, largest / 2 - 1, 11U,
                                  12U, 10U, largest - largest / 8}) {
    blocks.push_back(elements_below(GetParam(), 5000, exponent & largest, rng_));
  }
  expect_same_bytes(blocks);
}

TEST_P(EbaseGuess, IsNotSeenInBlocksOfZerosOrNansOrOneElement) {
  const std::size_t width = width_bytes(GetParam());
  const Bytes ordinary =
      elements_below(GetParam(), 3000, exponent_field(GetParam()).mask / 2, rng_);
  const Bytes zeros(3000 * width);
  const Bytes nans(3000 * width, std::byte{0xFF});
  const Bytes one = elements_below(GetParam(), 1, exponent_field(GetParam()).mask, rng_);
  expect_same_bytes({ordinary, zeros, nans, zeros, one, ordinary, {}, nans, one, zeros});
}

TEST_P(EbaseGuess, IsNotSeenAtTheLimitOfTwoPercent) {
  const ExponentField field = exponent_field(GetParam());
  if (field.mask == 0) GTEST_SKIP() << "no exponent";
  const unsigned high = field.mask - 1;
  std::vector<Bytes> blocks;
  for (const std::size_t above : std::initializer_list<std::size_t>{100, 99, 101, 100, 0}) {
    Bytes block = elements_below(GetParam(), 5000, high, rng_);
    for (std::size_t i = 0; i < 5000; ++i) {
      const unsigned exponent = i < above ? field.mask : high;
      const std::uint32_t rest =
          test::get_element(GetParam(), block, i) & ~(field.mask << field.shift);
      test::set_element(GetParam(), block, i, rest | exponent << field.shift);
    }
    blocks.push_back(std::move(block));
  }
  expect_same_bytes(blocks);
}

TEST_P(EbaseGuess, OfOneKindIsNotSeenInAnother) {
  for (const Kind other : test::kKinds) {
    const Bytes before = elements_below(other, 2000, exponent_field(other).mask, rng_);
    for (const Variant& variant : variants()) {
      Bytes coded;
      variant.encode_block(other, before,
                           test::changed_elements(other, before, 0.02, test::Step::unit, rng_),
                           test::scratch(), coded);
    }
    expect_same_bytes(
        {elements_below(GetParam(), 2000, exponent_field(GetParam()).mask / 2, rng_)});
  }
}

}  // namespace
}  // namespace weightfs::kernels
