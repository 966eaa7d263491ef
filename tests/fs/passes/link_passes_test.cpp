// Passes of bind mode: READLINK begins them, and what is opened is seen, but not who it was.
#include "fs/passes/link_passes.hpp"

#include <gtest/gtest.h>

#include "tests/support/pass_world.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr auto kLinkGrace = seconds(60);
constexpr auto kLinkTick = milliseconds(1);

class LinkPassesTest : public testing::Test {
 protected:
  std::uint64_t told(pid_t pid, const std::string& link = "latest") {
    return passes_.told(link, world_.reader(pid), world_.newest, world_.now);
  }
  void opened(const std::string& file = "a") { passes_.opened(42, file, seconds(1), world_.now); }
  void wait(BootTime time) {
    world_.now += time;
    passes_.sweep(world_.now);
  }

  PassWorld world_{3};
  LinkPasses passes_{PassTimes{}, world_};
  const pid_t me_ = world_.start("session 1"), sibling_ = world_.start("session 1"),
              stranger_ = world_.start("session 3");
};

TEST_F(LinkPassesTest, ReadlinkBeginsOneForTheGraceAndNoLongerHoweverOftenItIsAsked) {
  EXPECT_EQ(told(me_), 42u);
  world_.newest = 43;
  EXPECT_EQ(told(stranger_), 43u);
  for (int i = 0; i < 59; i++) {
    wait(seconds(1));
    EXPECT_EQ(told(me_), 42u);
    EXPECT_EQ(told(sibling_), 42u);
  }
  EXPECT_TRUE(passes_.has(42));
  wait(seconds(1));
  EXPECT_EQ(told(me_), 43u);
  EXPECT_EQ(passes_.list(world_.now).at(0).command, "loader");
}

TEST_F(LinkPassesTest, EachSymlinkHasOneOfItsOwn) {
  EXPECT_EQ(told(me_), 42u);
  world_.newest = 43;
  EXPECT_EQ(told(me_, "tags/best"), 43u);
  EXPECT_EQ(told(me_), 42u);
}

TEST_F(LinkPassesTest, AnOpenRightAfterTheReadlinkProlongsItToTheGraceAfterThat) {
  told(me_);
  told(stranger_);
  world_.newest = 43;
  wait(seconds(50));
  told(me_);
  wait(milliseconds(900));
  opened();
  wait(kLinkGrace - kLinkTick);
  EXPECT_EQ(told(me_), 42u);
  EXPECT_EQ(told(stranger_), 43u) << "it asked too long before the OPEN";
  wait(kLinkTick);
  EXPECT_EQ(told(me_), 43u);
}

TEST_F(LinkPassesTest, AnOpenOfAnotherVersionProlongsNothing) {
  told(me_);
  world_.newest = 43;
  wait(seconds(30));
  told(me_);
  passes_.opened(43, "a", seconds(1), world_.now);
  wait(seconds(30));
  EXPECT_EQ(told(me_), 43u);
}

TEST_F(LinkPassesTest, WhoOpensTheSameFileAgainAndAgainFollowsAfterFifteenMinutes) {
  told(me_);
  opened();
  world_.newest = 43;
  const BootTime began = world_.now;
  while (told(me_) == 42 && world_.now - began < minutes(20)) {
    opened();
    wait(seconds(20));
  }
  EXPECT_EQ(world_.now - began, minutes(15));
}

TEST_F(LinkPassesTest, WhatIsOpenOrMappedHoldsItButNotForEver) {
  told(me_);
  opened();
  world_.newest = 43;
  world_.processes.at(me_).mapped.insert(42);
  const BootTime began = world_.now;
  while (passes_.has(42)) wait(seconds(1));
  EXPECT_EQ(world_.now - began, minutes(15));
}

TEST_F(LinkPassesTest, ItEndsTheGraceAfterNothingIsOpenOrMappedAnyMore) {
  told(me_);
  world_.newest = 43;
  world_.processes.at(me_).mapped.insert(42);  // nobody saw the OPEN
  for (int i = 0; i < 300; i++) {
    wait(seconds(1));
    EXPECT_EQ(told(me_), 42u);
  }
  world_.processes.at(me_).mapped.clear();
  for (int i = 0; i < 60; i++) wait(seconds(1));
  EXPECT_EQ(told(me_), 43u);
}

TEST_F(LinkPassesTest, ByHandItEndsAtOnce) {
  told(me_);
  world_.newest = 43;
  EXPECT_EQ(passes_.end_session("session 1"), 1u);
  EXPECT_EQ(told(me_), 43u);
  EXPECT_EQ(passes_.end_version(43), 1u);
  EXPECT_EQ(passes_.end_all(), 0u);
  EXPECT_TRUE(passes_.is_empty());
}

TEST_F(LinkPassesTest, ADeadSessionHasNone) {
  told(stranger_);
  world_.end(stranger_);
  wait(seconds(10));
  EXPECT_TRUE(passes_.is_empty());
}

TEST_F(LinkPassesTest, AUidThatHasTooManyGetsNoMoreAndTheOthersDo) {
  for (std::size_t i = 0; i < kPassesMax; i++) {
    told(world_.start("session of uid 1000, " + std::to_string(i), 0, 1000));
  }
  const pid_t late = world_.start("late", 0, 1000);
  EXPECT_EQ(told(late), 42u);
  EXPECT_EQ(told(me_), 42u);
  world_.newest = 43;
  EXPECT_EQ(told(late), 43u);
  EXPECT_EQ(told(me_), 42u);
  ASSERT_EQ(passes_.full_tables().size(), 1u);
  EXPECT_EQ(passes_.full_tables()[0].uid, 1000u);
}

}  // namespace
}  // namespace weightfs::fs
