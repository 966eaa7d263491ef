// The changes that each variant finds, against the scalar ones.
#include "kernels/block/changes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "kernels/dispatch/variant_table.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

using test::changed_elements;
using test::random_elements;
using test::Step;

void expect_equal(const Changes& found, const Changes& expected) {
  ASSERT_EQ(found.count, expected.count);
  ASSERT_EQ(found.exception_count, expected.exception_count);
  const auto equal = [](const auto& a, const auto& b, std::size_t count) {
    return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin());
  };
  EXPECT_TRUE(equal(found.position, expected.position, expected.count));
  EXPECT_TRUE(equal(found.difference, expected.difference, expected.count));
  EXPECT_TRUE(equal(found.exception, expected.exception, expected.exception_count));
}

class FindChanges : public testing::TestWithParam<Kind> {
 protected:
  void expect_all_equal(ByteSpan before, ByteSpan after) {
    find_changes(GetParam(), before, after, *expected_);
    for (const Variant& variant : variants()) {
      SCOPED_TRACE(variant.name);
      variant.find_changes(GetParam(), before, after, *found_);
      expect_equal(*found_, *expected_);
    }
  }

  test::Random rng_ = test::make_rng();

 private:
  std::unique_ptr<Changes> expected_ = std::make_unique<Changes>();
  std::unique_ptr<Changes> found_ = std::make_unique<Changes>();
};
INSTANTIATE_TEST_SUITE_P(Kinds, FindChanges, testing::ValuesIn(test::kKinds), test::kind_name);

TEST_P(FindChanges, AllVariantsFindTheSameInBlocksOfAnyLength) {
  for (const std::size_t elements : std::initializer_list<std::size_t>{
           0, 1, 2, 15, 16, 63, 64, 65, 127, 128, 1000, kBlockElements - 1, kBlockElements}) {
    for (const double share : {0.0, 0.01, 0.3, 1.0}) {
      for (const Step how : {Step::unit, Step::few, Step::any}) {
        SCOPED_TRACE(elements);
        SCOPED_TRACE(share);
        const Bytes before = random_elements(GetParam(), elements, rng_);
        expect_all_equal(before, changed_elements(GetParam(), before, share, how, rng_));
      }
    }
  }
}

TEST_P(FindChanges, AllVariantsFindAChangeWhereverItIs) {
  const Bytes before = random_elements(GetParam(), 200, rng_);
  for (std::size_t i = 0; i < 200; ++i) {
    Bytes after = before;
    test::set_element(GetParam(), after, i, test::get_element(GetParam(), before, i) ^ 1);
    SCOPED_TRACE(i);
    expect_all_equal(before, after);
  }
}

TEST_P(FindChanges, NoVariantNeedsAlignment) {
  const Bytes before = random_elements(GetParam(), 500, rng_);
  const Bytes after = changed_elements(GetParam(), before, 0.1, Step::few, rng_);
  Bytes shifted_before(before.size() + 1);
  Bytes shifted_after(after.size() + 3);
  std::copy(before.begin(), before.end(), shifted_before.begin() + 1);
  std::copy(after.begin(), after.end(), shifted_after.begin() + 3);
  expect_all_equal(std::span(shifted_before).subspan(1), std::span(shifted_after).subspan(3));
}

TEST_P(FindChanges, SummariesOfAllVariantsAreEqual) {
  for (const std::size_t elements : std::initializer_list<std::size_t>{0, 1, 63, 64, 65, 70'000}) {
    const Bytes before = random_elements(GetParam(), elements, rng_);
    const Bytes after = changed_elements(GetParam(), before, 0.1, Step::any, rng_);
    const DiffSummary expected = variants().front().summarize_diff(GetParam(), before, after);
    for (const Variant& variant : variants()) {
      SCOPED_TRACE(variant.name);
      const DiffSummary found = variant.summarize_diff(GetParam(), before, after);
      EXPECT_EQ(found.changed, expected.changed);
      EXPECT_EQ(found.largest_ulp, expected.largest_ulp);
    }
  }
}

}  // namespace
}  // namespace weightfs::kernels
