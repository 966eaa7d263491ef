#include "store/materialize/segment_order.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/support/support.hpp"

namespace weightfs {
namespace {

TEST(SegmentOrder, TakesFilesInTurns) {
  const std::vector<std::size_t> counts = {3, 1, 0, 2};
  EXPECT_EQ(order_segments(counts, 2),
            (std::vector<SegmentPlace>{{0, 0}, {1, 0}, {0, 1}, {3, 0}, {0, 2}, {3, 1}}));
  EXPECT_EQ(order_segments(counts, 1),
            (std::vector<SegmentPlace>{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {3, 0}, {3, 1}}));
  EXPECT_TRUE(order_segments({}, 4).empty());
}

TEST(SegmentOrder, ThreadsHaveDifferentFilesAsLongAsThereAreSoMany) {
  auto rng = test::make_rng();
  for (int round = 0; round < 200; round++) {
    std::vector<std::size_t> counts(1 + rng() % 20);
    for (std::size_t& count : counts) count = rng() % 9;
    const std::size_t lanes = 1 + rng() % 6;
    const auto order = order_segments(counts, lanes);
    ASSERT_EQ(order.size(), std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
    std::vector<std::size_t> seen(counts.size(), 0);
    for (std::size_t i = 0; i < order.size(); i++) {
      ASSERT_EQ(order[i].segment, seen[order[i].file]++) << "a file's own stay in their order";
      std::set<std::size_t> left;  // files that have not ended before
      for (std::size_t j = i; j < order.size(); j++) left.insert(order[j].file);
      if (left.size() < lanes || i + lanes > order.size()) continue;
      std::set<std::size_t> together;
      for (std::size_t j = i; j < i + lanes; j++) together.insert(order[j].file);
      ASSERT_EQ(together.size(), lanes) << "from " << i << " on";
    }
  }
}

}  // namespace
}  // namespace weightfs
