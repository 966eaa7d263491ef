#include "fs/passes/latest_lookups.hpp"

#include <gtest/gtest.h>

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LatestLookupsTest : public testing::Test {
 protected:
  [[nodiscard]] bool opened(pid_t thread, std::uint64_t version) {
    return lookups_.opened(thread, version, now_).has_value();
  }
  void told(pid_t thread, std::uint64_t version, bool is_look = false) {
    lookups_.told(thread, {.link = "latest", .version = version, .is_look = is_look}, now_);
  }

  LatestLookups lookups_;
  Clock::time_point now_{seconds(1000)};
};

TEST_F(LatestLookupsTest, AnOpenAfterTheSameThreadsReadlinkEndsAWalk) {
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
}

TEST_F(LatestLookupsTest, AnOpenWithoutAReadlinkEndsNone) { EXPECT_FALSE(opened(7, 42)); }

TEST_F(LatestLookupsTest, TheReadlinkOfAnotherThreadCountsForNothing) {
  told(8, 42);
  EXPECT_FALSE(opened(7, 42));
  EXPECT_TRUE(opened(8, 42));
}

TEST_F(LatestLookupsTest, AReadlinkIsForgottenAfterASecond) {
  told(7, 42);
  now_ += kWalkTime;
  EXPECT_TRUE(opened(7, 42));
  told(7, 42);
  now_ += kWalkTime + milliseconds(1);
  EXPECT_FALSE(opened(7, 42));
}

TEST_F(LatestLookupsTest, ASecondOpenEndsNoWalk) {
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
  EXPECT_FALSE(opened(7, 42));
}

TEST_F(LatestLookupsTest, AnOpenOfSomethingElseInBetweenForgetsTheWalk) {
  told(7, 42);
  EXPECT_FALSE(opened(7, 0));
  EXPECT_FALSE(opened(7, 42));
}

TEST_F(LatestLookupsTest, AnOpenOfAnotherVersionEndsNoWalk) {
  told(7, 42);
  EXPECT_FALSE(opened(7, 41));
}

TEST_F(LatestLookupsTest, OfSeveralReadlinksTheLastOneCounts) {
  told(7, 41);
  told(7, 42);
  EXPECT_FALSE(opened(7, 41));
  told(7, 41);
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
}

TEST_F(LatestLookupsTest, EachReadlinkOfAnInvisibleThreadCountsForOneOpen) {
  told(0, 41);
  told(0, 42);
  told(0, 42);
  EXPECT_TRUE(opened(0, 42));
  EXPECT_TRUE(opened(0, 41));
  EXPECT_TRUE(opened(0, 42));
  EXPECT_FALSE(opened(0, 42));
}

TEST_F(LatestLookupsTest, ManyThreadsTakeBoundedRoomAndTheNewestAreRemembered) {
  constexpr auto kLast = static_cast<pid_t>(kLookupsMax) + 100;
  for (pid_t thread = 1; thread <= kLast; thread++) {
    told(thread, 42);
    now_ += std::chrono::microseconds(1);
  }
  EXPECT_EQ(lookups_.size(), kLookupsMax);
  EXPECT_TRUE(opened(kLast, 42));
  EXPECT_FALSE(opened(1, 42));
}

TEST_F(LatestLookupsTest, ACallThatOnlyLooksLeadsTheNextOpenAndEndsNothing) {
  told(7, 42, true);
  ASSERT_TRUE(lookups_.find_before(7, "latest", now_));
  EXPECT_EQ(lookups_.find_before(7, "latest", now_)->version, 42u);
  EXPECT_FALSE(lookups_.find_before(7, "tags/best", now_));
  EXPECT_FALSE(lookups_.find_before(8, "latest", now_));
  EXPECT_FALSE(lookups_.find_before(7, "latest", now_ + kWalkTime + milliseconds(1)));
  EXPECT_FALSE(opened(7, 42)) << "by its name";
  EXPECT_FALSE(lookups_.find_before(7, "latest", now_));
  told(7, 42);
  EXPECT_FALSE(lookups_.find_before(7, "latest", now_));
}

TEST_F(LatestLookupsTest, AfterAnOpenThatWasRefusedTheNextReadlinkIsToldWhatIsWanted) {
  told(7, 42);
  EXPECT_TRUE(opened(7, 42));
  lookups_.refused(7, "latest", 41, now_);
  ASSERT_TRUE(lookups_.find_before(7, "latest", now_));
  EXPECT_EQ(lookups_.find_before(7, "latest", now_)->version, 41u);
  EXPECT_TRUE(lookups_.find_before(7, "latest", now_)->is_retry);
  EXPECT_FALSE(opened(7, 41)) << "there was no READLINK";
  lookups_.refused(0, "latest", 41, now_);
  EXPECT_FALSE(lookups_.find_before(0, "latest", now_)) << "nobody knows who is next";
}

TEST_F(LatestLookupsTest, WhatWasToldIsKeptForAWhile) {
  lookups_.named(42, now_);
  EXPECT_FALSE(lookups_.was_told(41, now_));
  now_ += kToldTime;
  EXPECT_TRUE(lookups_.was_told(42, now_)) << "also after an OPEN: others may be on their way";
  EXPECT_FALSE(lookups_.was_told(42, now_ + milliseconds(1)));
}

}  // namespace
}  // namespace weightfs::fs
