// ReorderBuffer: the order of results, and how many wait.
#include "store/threads/reorder_buffer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

TEST(ReorderBuffer, TakesResultsInOrderAndKeepsFewWaiting) {
  constexpr std::size_t kAhead = 5;
  std::vector<std::size_t> taken;
  std::atomic<std::size_t> begun{0};
  ReorderBuffer<std::size_t> in_order(kAhead, [&](const std::size_t& result) {
    EXPECT_LE(begun, taken.size() + kAhead);
    taken.push_back(result);
  });
  parallel_for(1000, 4, {}, [&](std::size_t i) {
    EXPECT_TRUE(in_order.wait_turn(i));
    begun++;
    in_order.put(i, i);
  });
  ASSERT_EQ(taken.size(), 1000u);
  for (std::size_t i = 0; i < taken.size(); i++) EXPECT_EQ(taken[i], i);
}

TEST(ReorderBuffer, AFailureLetsNobodyWait) {
  ReorderBuffer<int> in_order(2, [](const int&) {});
  std::atomic<int> refused{0};
  parallel_for(4, 4, {}, [&](std::size_t i) {
    if (i == 0) {
      in_order.fail();
    } else if (!in_order.wait_turn(i + 1)) {
      refused++;
    }
  });
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace weightfs
