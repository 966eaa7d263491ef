// Config and index: what they decide for the weights that are loaded after them.
#include <gtest/gtest.h>

#include "tests/support/passes_fixture.hpp"

namespace weightfs::fs {
namespace {

TEST_F(PassesTest, WhoHasReadTheConfigGetsWeightsOfThatVersion) {
  const pid_t pid = start();
  EXPECT_EQ(read(pid, kConfig), 42u);
  EXPECT_EQ(read(pid, kIndex), 42u);
  publish();
  wait(seconds(90));  // it compiles
  EXPECT_EQ(load(pid), 42u);
}

TEST_F(PassesTest, WhoReadsTheIndexLaterGetsThatOfItsConfig) {
  const pid_t pid = start();
  EXPECT_EQ(read(pid, kConfig), 42u);
  publish();
  wait(seconds(70));
  EXPECT_EQ(read(pid, kIndex), 42u);
  EXPECT_EQ(load(pid), 42u);
}

TEST_F(PassesTest, WhoReadsItsConfigAgainWithinTheGraceGetsWeightsOfThatVersion) {
  const pid_t pid = start();
  read(pid, kConfig);
  load(pid);
  publish();
  wait(seconds(50));
  EXPECT_EQ(read(pid, kConfig), 42u);
  wait(seconds(20));
  EXPECT_EQ(load(pid), 42u);
  wait(kGrace);
  EXPECT_EQ(read(pid, kConfig), 43u);
}

TEST_F(PassesTest, ConfigAndIndexAreOfOneLoadThoughTheGraceEndsBetweenThem) {
  const pid_t pid = start();
  for (const std::uint32_t file : {kConfig, kIndex}) read(pid, file);
  load(pid);
  publish();
  wait(kGrace - kTick);
  EXPECT_EQ(read(pid, kConfig), 42u);
  wait(kTick);
  EXPECT_EQ(world_.look(pid), 42u);
  EXPECT_EQ(read(pid, kIndex), 42u);
  EXPECT_EQ(load(pid), 42u);
}

TEST_F(PassesTest, WhoPollsTheConfigWithoutAPauseAfterALoadMovesOnToo) {
  const pid_t pid = start();
  read(pid, kConfig);
  load(pid);
  publish();
  wait(kGrace - kTick);
  for (unsigned i = 0; i < 2; i++) {
    EXPECT_EQ(read(pid, kConfig), 42u);
    wait(seconds(1));
  }
  wait(kTick);
  EXPECT_EQ(read(pid, kConfig), 43u);
}

// generation_config.json, a minute after the weights.
TEST_F(PassesTest, TheTailOfALoadDoesNotDecideTheNextOne) {
  const pid_t pid = start();
  for (int i = 0; i < 4; i++) {
    const std::uint64_t newest = world_.newest;
    EXPECT_EQ(read(pid, kConfig), newest) << i;
    EXPECT_EQ(load(pid), newest) << i;
    wait(kGrace);
    EXPECT_EQ(read(pid, kIndex), newest) << i;
    publish();
    wait(kGrace);
  }
}

TEST_F(PassesTest, WhatALoadBeforeTheTailHadReadIsNoSecondLookOfTheNextOne) {
  constexpr std::uint32_t kTokenizer = 102;
  const pid_t pid = start();
  for (const std::uint32_t file : {kConfig, kTokenizer}) read(pid, file);
  load(pid);
  publish();
  wait(kGrace);
  EXPECT_EQ(read(pid, kIndex), 43u);
  EXPECT_EQ(read(pid, kConfig), 43u);
  EXPECT_EQ(load(pid), 43u);
  publish();
  for (const std::uint32_t file : {kTokenizer, kIndex}) {
    wait(kQuiet);
    EXPECT_EQ(read(pid, file), 43u) << file;
  }
}

TEST_F(PassesTest, SoDoesWhoItStartsMeanwhile) {
  const pid_t pid = start();
  read(pid, kConfig);
  publish();
  wait(seconds(90));
  const pid_t worker = start("session of the worker", start("session 7", pid));
  EXPECT_EQ(load(worker), 42u);
  wait(seconds(1));
  EXPECT_EQ(load(start("session 1", pid)), 43u) << "a program after that load";
}

TEST_F(PassesTest, AfterFifteenMinutesItIsAnotherLoad) {
  const pid_t pid = start();
  read(pid, kConfig);
  publish();
  wait(minutes(15));
  EXPECT_EQ(load(pid), 43u);
}

TEST_F(PassesTest, RanksThatWereStartedBeforeTheConfigWasReadGetItsVersion) {
  const pid_t first = start(), second = start();
  wait(seconds(1));
  read(first, kConfig);
  publish();
  EXPECT_EQ(read(second, kConfig), 42u);
  wait(milliseconds(10));
  EXPECT_EQ(read(start(), kConfig), 43u) << "another program";
  wait(seconds(90));
  EXPECT_EQ(load(second), 42u);
  EXPECT_EQ(load(first), 42u);
}

TEST_F(PassesTest, WhoPollsTheConfigMovesOnWithinTheGrace) {
  const pid_t pid = start();
  read(pid, kConfig);
  publish();
  for (int i = 0; i < 59; i++) {
    wait(seconds(1));
    EXPECT_EQ(read(pid, kConfig), 42u);
  }
  wait(seconds(1));
  EXPECT_EQ(read(pid, kConfig), 43u);
  EXPECT_EQ(load(pid), 43u);
}

TEST_F(PassesTest, WhoHasLoadedAndPollsTheConfigMovesOnToo) {
  const pid_t pid = start();
  read(pid, kConfig);
  load(pid);
  publish();
  wait(seconds(1));
  EXPECT_EQ(read(pid, kConfig), 42u);
  wait(kGrace);
  EXPECT_EQ(read(pid, kConfig), 43u);
  EXPECT_EQ(load(pid), 43u);
}

// Its load failed after the first shard, while it stayed for another.
TEST_F(PassesTest, WhoStayedAndOnlyPollsTheConfigMovesOnWithinFifteenMinutes) {
  const pid_t idle = start(), rank = start();
  for (const std::uint32_t file : {kConfig, 3u}) EXPECT_EQ(read(idle, file), 42u);
  for (int loads = 0; loads < 2; loads++) {
    for (const std::uint32_t file : {kConfig, 1u, 2u}) EXPECT_EQ(read(rank, file), 42u);
    wait(minutes(2));
  }
  publish();
  for (const std::uint32_t file : {kConfig, 1u}) EXPECT_EQ(read(rank, file), 42u) << "it stays";
  std::uint64_t version = 0;
  for (BootTime polled{}; polled <= minutes(15); polled += seconds(30)) {
    wait(seconds(30));
    version = read(rank, kConfig);
  }
  EXPECT_EQ(version, 43u);
  EXPECT_FALSE(world_.passes.has(42));
}

TEST_F(PassesTest, AProgramThatReadsTheConfigAfterALoadGetsTheNewest) {
  load(start());
  publish();
  wait(seconds(1));
  EXPECT_EQ(cat(kConfig), 43u);
  publish();
  EXPECT_EQ(cat(kConfig), 44u) << "who has only read that holds nothing when it is gone";
}

}  // namespace
}  // namespace weightfs::fs
