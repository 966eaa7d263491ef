// Blocks in which many elements change have a way of their own where the processor has the
// instructions for it: that it is taken, that nothing else is taken for such a block, and that its
// bytes are those of scalar whatever block comes before or after.
#include <gtest/gtest.h>

#include <optional>

#include "kernels/dispatch/variant_table.hpp"
#include "tests/kernels/coded_blocks.hpp"

namespace weightfs::kernels {
namespace {

using test::Step;

const Variant* find_variant(std::string_view name) {
  for (const Variant& variant : variants()) {
    if (variant.name == name) return &variant;
  }
  return nullptr;
}

Bytes encode(const Variant& variant, Kind kind, const Bytes& before, const Bytes& after,
             Scratch& scratch) {
  Bytes coded;
  variant.encode_block(kind, before, after, scratch, coded);
  return coded;
}

class Dense : public test::KindTest {
 protected:
  /// Blocks whose dense form is XR: weights of a few exponents that move by a few units.
  [[nodiscard]] Bytes weights(std::size_t elements) {
    const ExponentField field = exponent_field(GetParam());
    Bytes bytes = random(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      const std::uint32_t bits = test::get_element(GetParam(), bytes, i);
      const auto exponent = static_cast<std::uint32_t>(rng_() % (field.mask / 2 + 1) % 10);
      test::set_element(GetParam(), bytes, i,
                        (bits & ~(field.mask << field.shift)) | exponent << field.shift);
    }
    return bytes;
  }

  void expect_same_as_scalar(const Variant& variant, const Bytes& before, const Bytes& after,
                             Scratch& scratch) {
    Scratch own;
    const Bytes expected = encode(variants().front(), GetParam(), before, after, own);
    const Bytes coded = encode(variant, GetParam(), before, after, scratch);
    ASSERT_TRUE(coded == expected);
    if (coded.empty()) return;
    Bytes decoded(before.size());
    ASSERT_TRUE(variant.decode_block(GetParam(), before, coded, decoded, scratch));
    ASSERT_TRUE(decoded == after);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Dense, testing::ValuesIn(test::kKinds), test::kind_name);

TEST_P(Dense, BlocksTakeTheirOwnWayInBothDirections) {
  const Bytes before = weights(kBlockElements);
  const Bytes after = changed(before, 0.5, Step::unit);
  bool is_some = false;
  for (const std::string_view name : {"avx2", "avx3", "avx3_dl"}) {
    const Variant* const variant = find_variant(name);
    if (variant == nullptr) continue;
    SCOPED_TRACE(name);
    is_some = true;
    Scratch scratch;
    const Bytes coded = encode(*variant, GetParam(), before, after, scratch);
    ASSERT_EQ(static_cast<Mode>(coded.front()), Mode::xr);
    EXPECT_EQ(scratch.dense_blocks(), 1U);
    Bytes decoded(before.size());
    ASSERT_TRUE(variant->decode_block(GetParam(), before, coded, decoded, scratch));
    EXPECT_EQ(scratch.dense_blocks(), 2U);
    EXPECT_TRUE(decoded == after);
  }
  if (!is_some) GTEST_SKIP() << "no bit extract and deposit";
}

TEST_P(Dense, SparseBlocksDoNotTakeIt) {
  const Bytes before = weights(kBlockElements);
  const Bytes after = changed(before, 0.01, Step::unit);
  for (const Variant& variant : variants()) {
    Scratch scratch;
    expect_same_as_scalar(variant, before, after, scratch);
    EXPECT_EQ(scratch.dense_blocks(), 0U) << variant.name;
  }
}

TEST_P(Dense, SparseEqualAndDenseBlocksMayFollowEachOther) {
  const Bytes before = weights(kBlockElements);
  for (const Variant& variant : variants().subspan(1)) {
    SCOPED_TRACE(variant.name);
    Scratch scratch;
    for (const double share : {0.5, 0.01, 0.3, 0.0, 0.9, 1.0}) {
      expect_same_as_scalar(variant, before, changed(before, share, Step::few), scratch);
      expect_same_as_scalar(variant, before, before, scratch);
      expect_same_as_scalar(variant, before, changed(before, share, Step::unit), scratch);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Dense, BlocksOfOtherSizesAndOfOtherModesAreTheSame) {
  for (const Variant& variant : variants().subspan(1)) {
    SCOPED_TRACE(variant.name);
    Scratch scratch;
    for (const std::size_t elements : {6200u, 8191u, 20'001u, 65'472u, 65'535u}) {
      const Bytes before = weights(elements);
      Bytes moved = before;  // all by one unit: XS
      for (std::size_t i = 0; i < elements; ++i) {
        test::set_element(GetParam(), moved, i, test::get_element(GetParam(), before, i) + 1);
      }
      expect_same_as_scalar(variant, before, moved, scratch);
      expect_same_as_scalar(variant, before, random(elements), scratch);  // raw
      for (const Step how : {Step::unit, Step::few, Step::any}) {
        expect_same_as_scalar(variant, before, changed(before, 0.35, how), scratch);
        expect_same_as_scalar(variant, before, changed(before, 0.97, how), scratch);
        // EF: one exponent only.
        const Bytes equal(before.size(), std::byte{0x11});
        expect_same_as_scalar(variant, equal, changed(equal, 0.2, how), scratch);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Dense, DamagedBlocksAreTakenOrRefusedAsByScalar) {
  const Variant& scalar = variants().front();
  Scratch scratch;
  for (const double share : {0.35, 0.5, 0.97}) {
    for (const Step how : {Step::unit, Step::few, Step::any}) {
      const Bytes before = weights(20'001);
      const Bytes coded = encode(scalar, GetParam(), before, changed(before, share, how), scratch);
      for (int i = 0; i < 20; ++i) {
        const Bytes bad = test::damaged(coded, rng_);
        Bytes expected(before.size());
        const bool is_good = scalar.decode_block(GetParam(), before, bad, expected, scratch);
        for (const Variant& variant : variants().subspan(1)) {
          Bytes decoded(before.size());
          ASSERT_EQ(variant.decode_block(GetParam(), before, bad, decoded, scratch), is_good)
              << variant.name;
          ASSERT_TRUE(!is_good || decoded == expected) << variant.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weightfs::kernels
