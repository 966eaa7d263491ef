#include "store/streaming/window_waiters.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <vector>

namespace weightfs {
namespace {

TEST(WindowWaitersTest, AreCalledOnceWhenTheLastOfTheirWindowsIsHereOrOneFails) {
  WindowWaiters waiters;
  int both = 0, second = 0;
  waiters.add(std::array<std::size_t, 2>{1, 2}, [&] { both++; });
  waiters.add(std::array<std::size_t, 1>{2}, [&] { second++; });
  std::vector<WindowWaiters::Wake> calls;
  waiters.take_ready(2, calls);
  EXPECT_EQ(calls.size(), 1u);
  EXPECT_FALSE(waiters.contains(2));
  waiters.take_all(1, calls);
  waiters.take_all(calls);
  ASSERT_EQ(calls.size(), 2u);
  for (const auto& call : calls) call();
  EXPECT_EQ(both, 1);
  EXPECT_EQ(second, 1);
}

// Whatever fails after a window counts as here would leave its file without an end.
TEST(WindowWaitersTest, TakingThemNeedsNoMoreMemoryThanWasMadeRoomFor) {
  WindowWaiters waiters;
  for (std::size_t window : {1u, 2u, 2u, 2u}) {
    waiters.add(std::array<std::size_t, 1>{window}, [] {});
  }
  std::vector<WindowWaiters::Wake> calls;
  waiters.make_room(1, calls);
  waiters.make_room(2, calls);
  waiters.make_room(3, calls);
  const std::size_t room = calls.capacity();
  EXPECT_GE(room, 4u);
  waiters.take_ready(1, calls);
  waiters.take_all(2, calls);
  EXPECT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls.capacity(), room);
}

}  // namespace
}  // namespace weightfs
