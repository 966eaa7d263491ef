#include "kernels/dispatch/diff.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

using test::get_element;
using test::set_element;

Bytes bf16(std::initializer_list<std::uint16_t> elements) {
  Bytes bytes(2 * elements.size());
  std::memcpy(bytes.data(), elements.begin(), bytes.size());
  return bytes;
}

Bytes f32(float element) {
  Bytes bytes(sizeof element);
  std::memcpy(bytes.data(), &element, bytes.size());
  return bytes;
}

/// Rank of an element among all values of its kind, counted from the most negative one.
std::uint64_t rank(Kind kind, std::uint32_t bits) {
  if (kind == Kind::u8) return bits;
  const std::uint64_t half = std::uint64_t{1} << (8 * width_bytes(kind) - 1);
  return bits < half ? half + bits : 2 * half - 1 - bits;
}

DiffSummary expected_summary(Kind kind, const Bytes& before, const Bytes& after) {
  DiffSummary summary;
  for (std::size_t i = 0; i < before.size() / width_bytes(kind); ++i) {
    const std::uint64_t a = rank(kind, get_element(kind, before, i));
    const std::uint64_t b = rank(kind, get_element(kind, after, i));
    summary.changed += a != b;
    summary.largest_ulp = std::max(summary.largest_ulp, a < b ? b - a : a - b);
  }
  return summary;
}

void expect_equal(const DiffSummary& a, const DiffSummary& b) {
  EXPECT_EQ(a.changed, b.changed);
  EXPECT_EQ(a.largest_ulp, b.largest_ulp);
}

class Diff : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Diff, testing::ValuesIn(test::kKinds), test::kind_name);

TEST_P(Diff, CountsWhatAnElementByElementComparisonCounts) {
  test::Random rng = test::make_rng();
  for (const std::size_t elements :
       std::initializer_list<std::size_t>{0, 1, 2, 7, 8, 15, 31, 33, 64, 1000, 70'000}) {
    for (const double share : {0.0, 0.01, 0.5, 1.0}) {
      for (const test::Step how : {test::Step::unit, test::Step::few, test::Step::any}) {
        const Bytes before = test::random_elements(GetParam(), elements, rng);
        const Bytes after = test::changed_elements(GetParam(), before, share, how, rng);
        SCOPED_TRACE(elements);
        expect_equal(summarize_diff(GetParam(), before, after),
                     expected_summary(GetParam(), before, after));
      }
    }
  }
}

TEST_P(Diff, FindsASingleChangeWhereverItIs) {
  test::Random rng = test::make_rng();
  const Bytes before = test::random_elements(GetParam(), 101, rng);
  for (std::size_t i = 0; i < 101; ++i) {
    Bytes after = before;
    set_element(GetParam(), after, i, get_element(GetParam(), before, i) ^ 1);
    SCOPED_TRACE(i);
    expect_equal(summarize_diff(GetParam(), before, after), {1, 1});
  }
}

TEST_P(Diff, NeedsNoAlignment) {
  test::Random rng = test::make_rng();
  const std::size_t width = width_bytes(GetParam());
  const Bytes before = test::random_elements(GetParam(), 500, rng);
  const Bytes after = test::changed_elements(GetParam(), before, 0.1, test::Step::few, rng);
  Bytes shifted_before(before.size() + 1);
  Bytes shifted_after(after.size() + 3);
  std::copy(before.begin(), before.end(), shifted_before.begin() + 1);
  std::copy(after.begin(), after.end(), shifted_after.begin() + 3);
  expect_equal(summarize_diff(GetParam(), std::span(shifted_before).subspan(1),
                              std::span(shifted_after).subspan(3)),
               expected_summary(GetParam(), before, after));
  ASSERT_EQ(before.size() % width, 0U);
}

TEST(DiffOfSpecialValues, ZerosAreNeighbours) {
  expect_equal(summarize_diff(Kind::bf16, bf16({0x0000}), bf16({0x8000})), {1, 1});
}

TEST(DiffOfSpecialValues, TheSignCountsThroughZero) {
  expect_equal(summarize_diff(Kind::bf16, bf16({0x0001, 7}), bf16({0x8001, 7})), {1, 3});
}

TEST(DiffOfSpecialValues, InfinitiesAndNansAreValuesLikeOthers) {
  expect_equal(summarize_diff(Kind::bf16, bf16({0x7F80}), bf16({0x7F81})), {1, 1});
  expect_equal(summarize_diff(Kind::bf16, bf16({0x7F80}), bf16({0xFF80})), {1, 2 * 0x7F80 + 1});
}

TEST(DiffOfSpecialValues, TheLargestDistanceFits) {
  expect_equal(summarize_diff(Kind::u8, Bytes(1, std::byte{0}), Bytes(1, std::byte{255})),
               {1, 255});
  expect_equal(
      summarize_diff(Kind::f32, Bytes(4, std::byte{0xFF}),
                     Bytes{std::byte{0xFF}, std::byte{0xFF}, std::byte{0xFF}, std::byte{0x7F}}),
      {1, 0xFFFF'FFFF});
  expect_equal(summarize_diff(Kind::f32, f32(1.0F), f32(std::nextafter(1.0F, 2.0F))), {1, 1});
}

}  // namespace
}  // namespace weightfs::kernels
