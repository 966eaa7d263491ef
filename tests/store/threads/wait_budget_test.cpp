#include "store/threads/wait_budget.hpp"

#include <gtest/gtest.h>

namespace weightfs::test {
namespace {

using std::chrono::seconds;

constexpr seconds kMost{2};

TEST(WaitBudget, GivesTheFirstOfManyCallsAllThereIs) {
  WaitBudget budget(kMost);
  const Clock::time_point now{};
  EXPECT_EQ(budget.take(7, now), kMost);
  EXPECT_EQ(budget.take(7, now), seconds(0));
  EXPECT_EQ(budget.take(7, now), seconds(0));
}

TEST(WaitBudget, GivesBackWhatWasNotUsedAndAQuarterOfTheTime) {
  WaitBudget budget(kMost);
  const Clock::time_point now{};
  budget.take(7, now);
  budget.give_back(7, seconds(1), now);
  EXPECT_EQ(budget.take(7, now), seconds(1));
  budget.give_back(7, seconds(0), now);
  EXPECT_EQ(budget.take(7, now + seconds(4)), seconds(1));
  budget.give_back(7, seconds(0), now + seconds(4));
  EXPECT_EQ(budget.take(7, now + seconds(1000)), kMost);
}

TEST(WaitBudget, KeepsUsersApartAndForgetsWhoHasAllOfItAgain) {
  WaitBudget budget(kMost);
  const Clock::time_point now{};
  for (uid_t user = 0; user < 100; user++) {
    EXPECT_EQ(budget.take(user, now), kMost);
    budget.give_back(user, seconds(0), now);
  }
  EXPECT_EQ(budget.user_count(), 100u);
  budget.take(7, now + seconds(8));
  EXPECT_EQ(budget.user_count(), 1u);
  budget.take(8, now + seconds(1000));
  EXPECT_EQ(budget.user_count(), 2u);  // user 7's turn has not ended
}

}  // namespace
}  // namespace weightfs::test
