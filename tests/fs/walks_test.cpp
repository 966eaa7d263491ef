#include "fs/walks.hpp"

#include <gtest/gtest.h>

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class WalksTest : public testing::Test {
 protected:
  [[nodiscard]] bool opened(pid_t thread, std::uint64_t version) {
    return walks_.opened(thread, version, now_);
  }
  void told(pid_t thread, std::uint64_t version) { walks_.told(thread, version, now_); }

  Walks walks_;
  Clock::time_point now_{seconds(1000)};
};

TEST_F(WalksTest, AnOpenAfterTheSameThreadsReadlinkEndsAWalk) {
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
}

TEST_F(WalksTest, AnOpenWithoutAReadlinkEndsNone) { EXPECT_FALSE(opened(7, 42)); }

TEST_F(WalksTest, TheReadlinkOfAnotherThreadCountsForNothing) {
  told(8, 42);
  EXPECT_FALSE(opened(7, 42));
  EXPECT_TRUE(opened(8, 42));
}

TEST_F(WalksTest, AReadlinkIsForgottenAfterASecond) {
  told(7, 42);
  now_ += kWalkTime;
  EXPECT_TRUE(opened(7, 42));
  told(7, 42);
  now_ += kWalkTime + milliseconds(1);
  EXPECT_FALSE(opened(7, 42));
}

TEST_F(WalksTest, ASecondOpenEndsNoWalk) {
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
  EXPECT_FALSE(opened(7, 42));
}

TEST_F(WalksTest, AnOpenOfSomethingElseInBetweenForgetsTheWalk) {
  told(7, 42);
  EXPECT_FALSE(opened(7, 0));
  EXPECT_FALSE(opened(7, 42));
}

TEST_F(WalksTest, AnOpenOfAnotherVersionEndsNoWalk) {
  told(7, 42);
  EXPECT_FALSE(opened(7, 41));
}

TEST_F(WalksTest, OfSeveralReadlinksTheLastOneCounts) {
  told(7, 41);
  told(7, 42);
  EXPECT_FALSE(opened(7, 41));
  told(7, 41);
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
}

TEST_F(WalksTest, EachReadlinkOfAnInvisibleThreadCountsForOneOpen) {
  told(0, 41);
  told(0, 42);
  told(0, 42);
  EXPECT_TRUE(opened(0, 42));
  EXPECT_TRUE(opened(0, 41));
  EXPECT_TRUE(opened(0, 42));
  EXPECT_FALSE(opened(0, 42));
}

TEST_F(WalksTest, ManyThreadsTakeBoundedRoomAndTheNewestAreRemembered) {
  constexpr auto kLast = static_cast<pid_t>(kWalksMax) + 100;
  for (pid_t thread = 1; thread <= kLast; thread++) {
    told(thread, 42);
    now_ += std::chrono::microseconds(1);
  }
  EXPECT_EQ(walks_.size(), kWalksMax);
  EXPECT_TRUE(opened(kLast, 42));
  EXPECT_FALSE(opened(1, 42));
}

TEST_F(WalksTest, WhatWasToldIsKeptForAWhile) {
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
  EXPECT_FALSE(walks_.was_told(41, now_));
  now_ += kToldTime;
  EXPECT_TRUE(walks_.was_told(42, now_)) << "also after an OPEN: others may be on their way";
  EXPECT_FALSE(walks_.was_told(42, now_ + milliseconds(1)));
}

}  // namespace
}  // namespace weightfs::fs
