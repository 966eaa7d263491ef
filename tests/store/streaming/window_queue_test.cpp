#include "store/streaming/window_queue.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <set>
#include <vector>

namespace weightfs {
namespace {

using Taken = std::optional<std::size_t>;
using QueueState = WindowQueue::State;

const Clock::time_point kStart = Clock::now();

/// Takes windows in order, completing each before the next, until there is none.
std::vector<std::size_t> take_all(WindowQueue& queue, std::size_t worker = 0) {
  std::vector<std::size_t> taken;
  while (const Taken window = queue.take(worker, kStart)) {
    queue.set_here(*window);
    taken.push_back(*window);
  }
  return taken;
}

TEST(WindowQueueTest, WhatIsAskedForComesFirstThenWhatIsBehindItThenTheRest) {
  WindowQueue queue(6, 1, true);
  queue.read_ahead(5);
  queue.ask(4);
  queue.ask(2);
  queue.read_ahead(3);
  EXPECT_EQ(take_all(queue), (std::vector<std::size_t>{4, 2, 5, 3, 0, 1}));
  for (std::size_t i = 0; i < 6; i++) EXPECT_EQ(queue.state(i), QueueState::here);
}

TEST(WindowQueueTest, InTheForegroundAloneNothingElseIsTaken) {
  WindowQueue queue(6, 2, false);
  EXPECT_EQ(queue.take(0, kStart), std::nullopt);
  queue.ask(4);
  queue.read_ahead(5);
  EXPECT_EQ(take_all(queue), (std::vector<std::size_t>{4, 5}));
  EXPECT_EQ(queue.next_time(kStart), Clock::time_point::max());
}

TEST(WindowQueueTest, AWindowIsTakenOnceHoweverOftenItIsAskedFor) {
  WindowQueue queue(2, 2, false);
  queue.read_ahead(1);
  queue.ask(1);
  queue.ask(1);
  EXPECT_EQ(queue.take(0, kStart), Taken(1));
  queue.ask(1);
  queue.read_ahead(1);
  EXPECT_EQ(queue.take(1, kStart), std::nullopt);
  queue.set_here(1);
  queue.ask(1);
  EXPECT_EQ(queue.take(1, kStart), std::nullopt);
}

TEST(WindowQueueTest, WorkersGoThroughRunsOfTheirOwnAndHelpInTheEnd) {
  WindowQueue queue(2 * kWindowsPerRun, 2, true);
  EXPECT_EQ(queue.take(0, kStart), Taken(0));
  EXPECT_EQ(queue.take(1, kStart), Taken(kWindowsPerRun));
  queue.set_here(kWindowsPerRun);
  EXPECT_EQ(queue.take(1, kStart), Taken(kWindowsPerRun + 1)) << "the next one of its own run";
  queue.set_here(kWindowsPerRun + 1);
  std::vector<std::size_t> expected;
  for (std::size_t i = kWindowsPerRun + 2; i < 2 * kWindowsPerRun; i++) expected.push_back(i);
  for (std::size_t i = kWindowsPerRun - 1; i > 0; i--) expected.push_back(i);
  EXPECT_EQ(take_all(queue, 1), expected) << "its own run, then the other's from behind";
  queue.set_here(0);
  EXPECT_EQ(queue.take(0, kStart), std::nullopt);
}

TEST(WindowQueueTest, AQuarterOfTheWorkersIsKeptForWhoAsks) {
  WindowQueue queue(20, 4, true);
  for (std::size_t i = 0; i < 3; i++) EXPECT_TRUE(queue.take(i, kStart));
  EXPECT_EQ(queue.take(3, kStart), std::nullopt);
  queue.ask(19);
  EXPECT_EQ(queue.take(3, kStart), Taken(19));
  queue.set_here(0);  // worker 0's window
  EXPECT_EQ(queue.take(0, kStart), Taken(1));
}

TEST(WindowQueueTest, APausedWindowComesBackAfterAWhileThatGrows) {
  WindowQueue queue(1, 4, false);
  Clock::time_point now = kStart;
  Clock::duration last{};
  for (int i = 0; i < 3; i++) {
    queue.ask(0);
    ASSERT_EQ(queue.take(0, now), Taken(0));
    queue.pause(0, now);
    EXPECT_EQ(queue.state(0), QueueState::paused);
    EXPECT_EQ(queue.take(0, now), std::nullopt);
    const Clock::time_point next = queue.next_time(now);
    EXPECT_GT(next - now, last);  // doubled, times 0.75 to 1.25
    EXPECT_LT(next - now, std::chrono::seconds(2));
    EXPECT_EQ(queue.take(0, next - std::chrono::microseconds(1)), std::nullopt);
    last = next - now;
    now = next;
  }
  EXPECT_EQ(queue.take(0, now), Taken(0)) << "still asked for";
}

TEST(WindowQueueTest, AWindowThatIsWrittenIsNotTakenUntilItIsToBeMadeAgain) {
  const auto now = Clock::now();
  WindowQueue queue(2, 1, true);
  EXPECT_EQ(queue.take(0, now), 0u);
  queue.set_written(0);
  queue.ask(0);
  EXPECT_EQ(queue.take(0, now), 1u);
  queue.set_here(1);
  EXPECT_EQ(queue.take(0, now), std::nullopt);
  queue.make_again(0);
  EXPECT_EQ(queue.take(0, now), 0u);
  queue.set_written(0);
  queue.set_here(0);
  EXPECT_EQ(queue.state(0), WindowQueue::State::here);
  EXPECT_EQ(queue.take(0, now), std::nullopt);
}

TEST(WindowQueueTest, WhenAllWorkersFailInARowAllPause) {
  WindowQueue queue(100, 2, true);
  ASSERT_EQ(queue.take(0, kStart), Taken(0));
  ASSERT_EQ(queue.take(1, kStart), Taken(kWindowsPerRun));
  queue.pause(0, kStart);
  EXPECT_EQ(queue.take(0, kStart), Taken(1)) << "it may be that one object alone";
  queue.pause(kWindowsPerRun, kStart);
  queue.ask(50);
  EXPECT_EQ(queue.take(1, kStart), std::nullopt);
  const Clock::time_point next = queue.next_time(kStart);
  EXPECT_GT(next, kStart);
  EXPECT_LT(next, kStart + std::chrono::seconds(1));
  EXPECT_EQ(queue.take(1, next), Taken(50));
}

TEST(WindowQueueTest, OneSuccessEndsThePauseOfAll) {
  WindowQueue queue(100, 2, true);
  ASSERT_EQ(queue.take(0, kStart), Taken(0));
  ASSERT_EQ(queue.take(1, kStart), Taken(kWindowsPerRun));
  queue.pause(0, kStart);
  ASSERT_EQ(queue.take(0, kStart), Taken(1));
  queue.pause(1, kStart);
  EXPECT_EQ(queue.take(0, kStart), std::nullopt);
  queue.set_here(kWindowsPerRun);
  EXPECT_EQ(queue.take(0, kStart), Taken(2));
}

constexpr std::chrono::seconds kTold{30};

TEST(WindowQueueTest, AFailedWindowIsTriedAgainInItsTime) {
  const Clock::time_point later = kStart + kTold;
  WindowQueue queue(2, 1, true);
  ASSERT_EQ(queue.take(0, kStart), Taken(0));
  queue.fail(0, kStart, kTold);
  EXPECT_EQ(queue.state(0), QueueState::failed);
  queue.ask(0);
  EXPECT_EQ(take_all(queue), std::vector<std::size_t>{1}) << "others go on, and asking is no help";
  EXPECT_EQ(queue.next_time(kStart), later);
  EXPECT_EQ(queue.take(0, later), Taken(0));
}

TEST(WindowQueueTest, WhatWasNeverTriedComesBeforeWhatFailed) {
  WindowQueue queue(3, 1, true);
  ASSERT_EQ(queue.take(0, kStart), Taken(0));
  queue.fail(0, kStart, kTold);
  EXPECT_EQ(queue.take(0, kStart + kTold), Taken(1));
  queue.set_here(1);
  EXPECT_EQ(queue.take(0, kStart + kTold), Taken(2));
  queue.set_here(2);
  EXPECT_EQ(queue.take(0, kStart + kTold), Taken(0));
}

// Its file is not whole before, nor are its neighbours.
TEST(WindowQueueTest, WhatPausedComesBeforeWhatWasNeverTriedForHalfOfTheWorkers) {
  WindowQueue queue(4, 2, true);
  const Clock::time_point later = kStart + std::chrono::minutes(1);
  for (const std::size_t worker : {0u, 1u}) {
    ASSERT_EQ(queue.take(0, kStart), Taken(worker));
    queue.pause(worker, kStart);
  }
  EXPECT_EQ(queue.take(0, later), Taken(2)) << "which others do not hold up";
  queue.set_here(2);
  const Taken paused = queue.take(1, later);
  ASSERT_TRUE(paused);
  EXPECT_LT(*paused, 2u);
  queue.set_here(*paused);
  EXPECT_EQ(queue.take(0, later), Taken(3));
  queue.set_here(3);
  EXPECT_EQ(queue.take(0, later), Taken(1 - *paused));
}

TEST(WindowQueueTest, WhatFailsAgainIsTriedLessAndLessOftenUnlessSomebodyAsks) {
  WindowQueue queue(1, 1, true);
  Clock::time_point now = kStart;
  for (const unsigned times : {1u, 2u, 4u, 4u}) {
    ASSERT_EQ(queue.take(0, now), Taken(0));
    queue.fail(0, now, kTold);
    now += kTold * times;
    EXPECT_EQ(queue.take(0, now - std::chrono::microseconds(1)), std::nullopt);
  }
  ASSERT_EQ(queue.take(0, now), Taken(0));
  queue.fail(0, now, kTold);
  EXPECT_EQ(queue.take(0, now + kTold), std::nullopt);
  EXPECT_EQ(queue.state(0), QueueState::absent) << "its error is told no more";
  queue.ask(0);
  EXPECT_EQ(queue.take(0, now + kTold), Taken(0));
}

TEST(WindowQueueTest, WhenOneThatFailedIsHereTheOthersAreTriedAtOnce) {
  WindowQueue queue(3, 1, true);
  Clock::time_point now = kStart;
  for (int round = 0; round < 3; round++, now += kTold * 4) {
    for (std::size_t i = 0; i < 3; i++) {
      const Taken window = queue.take(0, now);
      ASSERT_TRUE(window);
      queue.fail(*window, now, kTold);
    }
  }
  now -= kTold * 3;  // their third failure was kTold ago
  EXPECT_EQ(queue.take(0, now), std::nullopt);
  queue.ask(1);
  ASSERT_EQ(queue.take(0, now), Taken(1));
  queue.set_here(1);
  EXPECT_EQ(queue.take(0, now), Taken(0));
  queue.fail(0, now, kTold);
  EXPECT_EQ(queue.take(0, now), Taken(2));
}

TEST(WindowQueueTest, InTheForegroundAloneAFailedWindowWaitsForWhoAsks) {
  const Clock::time_point later = kStart + kTold;
  WindowQueue queue(1, 1, false);
  queue.ask(0);
  ASSERT_EQ(queue.take(0, kStart), Taken(0));
  queue.fail(0, kStart, kTold);
  EXPECT_EQ(queue.take(0, later), std::nullopt);
  EXPECT_EQ(queue.state(0), QueueState::absent);
  queue.ask(0);
  EXPECT_EQ(queue.take(0, later), Taken(0));
}

}  // namespace
}  // namespace weightfs
