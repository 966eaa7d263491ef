#include "store/base/ranked_mutex.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <stop_token>
#include <thread>
#include <type_traits>

namespace weightfs {
namespace {

// In builds without checks it is just a mutex of the standard library.
static_assert(kChecksLockOrder || sizeof(RankedMutex) == sizeof(std::mutex));
static_assert(kChecksLockOrder || sizeof(RankedSharedMutex) == sizeof(std::shared_mutex));
static_assert(!std::is_copy_constructible_v<RankedMutex>);

class RankedMutexTest : public testing::Test {
 protected:
  RankedMutex outer_{LockRank::sync_round, "outer"};
  RankedMutex inner_{LockRank::database, "inner"};
  RankedMutex another_inner_{LockRank::database, "another inner"};
  RankedMutex leaf_{LockRank::leaf, "leaf"};
};

// The suffix makes gtest run death tests first, so that no threads of other tests exist at the
// fork.
class RankedMutexDeathTest : public RankedMutexTest {
 protected:
  void SetUp() override {
    if (!kChecksLockOrder) GTEST_SKIP() << "this build does not check the lock order";
    testing::FLAGS_gtest_death_test_style = "threadsafe";
  }
};

TEST_F(RankedMutexTest, IsLockedInTheOrderOfRanks) {
  const std::lock_guard outer(outer_);
  const std::lock_guard inner(inner_);
  const std::lock_guard leaf(leaf_);
}

TEST_F(RankedMutexTest, IsLockedAgainAndUnlockedInAnyOrder) {
  std::unique_lock outer(outer_);
  std::unique_lock inner(inner_);
  outer.unlock();
  const std::unique_lock leaf(leaf_);
  inner.unlock();
  // Neither is considered held any more.
  std::thread([&] { const std::scoped_lock both(outer_, inner_); }).join();
}

TEST_F(RankedMutexTest, TakesSeveralOfOneRankAtOnce) {
  const std::scoped_lock both(inner_, another_inner_);
}

TEST_F(RankedMutexTest, IsTriedInAnyOrder) {
  const std::lock_guard leaf(leaf_);
  ASSERT_TRUE(outer_.try_lock());
  std::thread([&] { EXPECT_FALSE(outer_.try_lock()); }).join();
  outer_.unlock();
}

TEST_F(RankedMutexTest, KeepsOtherThreadsOut) {
  int count = 0;
  constexpr int kRounds = 10'000;
  const auto add = [&] {
    for (int i = 0; i < kRounds; ++i) {
      const std::lock_guard lock(inner_);
      ++count;
    }
  };
  std::thread one(add), two(add);
  one.join();
  two.join();
  EXPECT_EQ(count, 2 * kRounds);
}

TEST_F(RankedMutexTest, AThreadIsNotBoundByWhatOthersHold) {
  const std::lock_guard leaf(leaf_);
  std::thread([&] { const std::lock_guard outer(outer_); }).join();
}

TEST_F(RankedMutexTest, AModelOfSeveralThreadsIsNotBoundByWhatItHeldBefore) {
  const std::lock_guard leaf(leaf_);
  {
    const ActsAsAnotherThread another;
    const std::lock_guard outer(outer_);
    const std::lock_guard inner(inner_);
  }
  EXPECT_TRUE(outer_.try_lock());
  outer_.unlock();
}

TEST_F(RankedMutexTest, ConditionVariablesWaitWithIt) {
  std::condition_variable_any changed;
  bool is_there = false;
  std::jthread other([&](const std::stop_token& stop) {
    // The wait happens with this mutex held: an outer one stays locked during the wait.
    const std::lock_guard outer(outer_);
    std::unique_lock lock(inner_);
    EXPECT_TRUE(changed.wait(lock, stop, [&] { return is_there; }));
    // Locked again, and recorded as held.
    EXPECT_TRUE(lock.owns_lock());
    const std::lock_guard leaf(leaf_);
  });
  {
    const std::lock_guard lock(inner_);
    is_there = true;
  }
  changed.notify_one();
}

TEST_F(RankedMutexTest, AWaitEndsByAStop) {
  std::condition_variable_any changed;
  std::jthread other([&](const std::stop_token& stop) {
    std::unique_lock lock(inner_);
    EXPECT_FALSE(changed.wait(lock, stop, [] { return false; }));
  });
}

TEST_F(RankedMutexTest, ATimedOneGivesUp) {
  RankedTimedMutex timed(LockRank::bound_work, "timed");
  const std::lock_guard held(timed);
  std::thread([&] {
    const std::unique_lock lock(timed, std::chrono::milliseconds(1));
    EXPECT_FALSE(lock.owns_lock());
    // A mutex that was not acquired is not recorded as held.
    const std::lock_guard outer(outer_);
  }).join();
}

TEST_F(RankedMutexTest, ASharedOneIsHeldBySeveral) {
  RankedSharedMutex shared(LockRank::database, "shared");
  std::shared_lock one(shared);
  std::thread([&] {
    const std::shared_lock two(shared);
    const std::lock_guard leaf(leaf_);
  }).join();
  EXPECT_FALSE(std::unique_lock(shared, std::try_to_lock).owns_lock());
  one.unlock();
  const std::unique_lock alone(shared);
}

TEST_F(RankedMutexDeathTest, LockingAnOuterOneUnderAnInnerOneAborts) {
  const std::lock_guard inner(inner_);
  EXPECT_DEATH(outer_.lock(), "outer .rank [0-9]+. is locked by a thread that holds inner .rank");
}

TEST_F(RankedMutexDeathTest, AllThatIsHeldCounts) {
  // try_lock may be in any order; then the outer mutex is the last one, but the leaf still counts.
  const std::lock_guard leaf(leaf_);
  ASSERT_TRUE(outer_.try_lock());
  EXPECT_DEATH(inner_.lock(), "inner .* holds leaf");
  outer_.unlock();
}

TEST_F(RankedMutexDeathTest, TwoOfOneRankAbort) {
  const std::lock_guard inner(inner_);
  EXPECT_DEATH(another_inner_.lock(), "another inner .* holds inner");
}

TEST_F(RankedMutexDeathTest, LockingItTwiceAborts) {
  const std::lock_guard inner(inner_);
  EXPECT_DEATH(inner_.lock(), "inner .* holds inner");
}

TEST_F(RankedMutexDeathTest, ReadingASharedOneTwiceAborts) {
  RankedSharedMutex shared(LockRank::database, "shared");
  const std::shared_lock one(shared);
  EXPECT_DEATH(shared.lock_shared(), "shared .* holds shared");
}

TEST_F(RankedMutexDeathTest, ATimedOneIsCheckedToo) {
  RankedTimedMutex timed(LockRank::bound_work, "timed");
  const std::lock_guard inner(inner_);
  EXPECT_DEATH((void)timed.try_lock_for(std::chrono::seconds(1)), "timed .* holds inner");
}

TEST_F(RankedMutexDeathTest, LockingAgainAfterAWaitIsChecked) {
  // A wait with an inner mutex held: the notifying thread may need it.
  std::condition_variable_any changed;
  std::unique_lock outer(outer_);
  const std::lock_guard inner(inner_);
  EXPECT_DEATH(changed.wait_for(outer, std::chrono::milliseconds(1)), "outer .* holds inner");
}

TEST_F(RankedMutexDeathTest, UnlockingWhatIsNotHeldAborts) {
  EXPECT_DEATH(inner_.unlock(), "unlocks a mutex that it does not hold");
}

TEST_F(RankedMutexDeathTest, ARequestToTheBucketUnderATableAborts) {
  {
    const std::lock_guard outer(outer_);
    check_lock_order(LockRank::bucket, "a request to the bucket");
  }
  const std::lock_guard inner(inner_);
  EXPECT_DEATH(check_lock_order(LockRank::bucket, "a request to the bucket"),
               "a request to the bucket .* holds inner");
}

}  // namespace
}  // namespace weightfs
