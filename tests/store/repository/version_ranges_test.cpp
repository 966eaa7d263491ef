#include "store/repository/version_ranges.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/support.hpp"

namespace weightfs::test {
namespace {

using Numbers = std::set<std::uint64_t>;

VersionRanges ranges_of(const Numbers& numbers) {
  VersionRanges ranges;
  for (const std::uint64_t number : numbers) ranges.add(number);
  return ranges;
}

Numbers random_numbers(Random& rng) {
  Numbers numbers;
  for (std::uint64_t i = rng() % 20; i > 0; i--) numbers.insert(1 + rng() % 40);
  return numbers;
}

TEST(VersionRanges, AreAddedInAnyOrder) {
  VersionRanges ranges;
  ranges.add({5, 6});
  ranges.add(10);
  ranges.add(3);
  EXPECT_EQ(ranges.text(), "3, 5 to 6, 10");
  ranges.add(4);
  EXPECT_EQ(ranges.text(), "3 to 6, 10");
  ranges.add(8);
  ranges.add({7, 9});
  EXPECT_EQ(ranges.text(), "3 to 10");
  ranges.add({1, 20});
  ranges.add({2, 4});
  EXPECT_EQ(ranges.text(), "1 to 20");
  ranges.add(21);
  EXPECT_EQ(ranges.text(), "1 to 21");
}

TEST(VersionRanges, AreASetOfNumbers) {
  Random rng = make_rng();
  for (int round = 0; round < 2000; round++) {
    const Numbers a = random_numbers(rng), b = random_numbers(rng);
    const VersionRanges of_a = ranges_of(a), of_b = ranges_of(b);
    const bool meet = std::ranges::any_of(a, [&](std::uint64_t one) { return b.contains(one); });
    EXPECT_EQ(of_a.overlaps(of_b), meet) << of_a.text(99) << "; " << of_b.text(99);
    EXPECT_EQ(of_b.overlaps(of_a), meet);
    Numbers both = a;
    both.insert(b.begin(), b.end());
    VersionRanges sum = of_a;
    sum.add(of_b);
    EXPECT_EQ(sum, ranges_of(both)) << of_a.text(99) << "; " << of_b.text(99);
    EXPECT_EQ(sum.count(), both.size());
    for (std::uint64_t number = 0; number <= 41; number++) {
      EXPECT_EQ(sum.contains(number), both.contains(number)) << number;
    }
    sum.add(sum);
    EXPECT_EQ(sum.count(), both.size());
  }
}

// A record of 8 MiB has so many.
TEST(VersionRanges, AMillionAreAddedAndComparedInAMoment) {
  VersionRanges even, odd;
  for (std::uint64_t number = 1; number <= 1'000'000; number++) {
    even.add(4 * number);
    odd.add(4 * number + 2);
  }
  EXPECT_FALSE(even.overlaps(odd));
  even.add(odd);
  EXPECT_EQ(even.ranges().size(), 2'000'000u);
}

}  // namespace
}  // namespace weightfs::test
