// How a process that has loaded, or is in the middle of it, goes on or begins again: the rules of
// docs/SEMANTICS.md, "Passes".
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/passes_fixture.hpp"

namespace weightfs::fs {
namespace {

TEST_F(PassesTest, AProcessThatBeginsAgainAfterTheGraceGetsTheNewest) {
  const pid_t pid = start();
  load(pid);
  publish();
  wait(kGrace);
  EXPECT_EQ(load(pid), 43u);
}

TEST_F(PassesTest, ADraftModelThatReadsTheSameShardsAgainGetsTheSameVersion) {
  const pid_t pid = start();
  load(pid);
  publish();
  wait(seconds(20));
  EXPECT_EQ(load(pid), 42u);
  wait(kQuiet);
  EXPECT_EQ(load(pid), 43u) << "the third time is another load";
}

TEST_F(PassesTest, ALoaderThatGoesOverTheFilesTwiceIsInOneLoad) {
  const pid_t pid = start();
  for (int load_number = 0; load_number < 4; load_number++) {
    const std::uint64_t version = world_.newest;
    EXPECT_EQ(load(pid), version);
    publish();
    wait(seconds(20));
    EXPECT_EQ(load(pid), version) << "slow about it";
    wait(seconds(61));
  }
}

TEST_F(PassesTest, ALoaderThatComesBackToItsFirstFileInTheMiddleStays) {
  const pid_t pid = start();
  read(pid, 1);
  publish();
  for (std::uint32_t file = 2; file <= kShards; file++) {
    wait(seconds(5));
    EXPECT_EQ(read(pid, 1), 42u);
    wait(seconds(5));
    EXPECT_EQ(read(pid, file), 42u);
  }
}

TEST_F(PassesTest, WhoOpensAgainAtOnceOrHasSomethingOpenStays) {
  const pid_t pid = start();
  load(pid);
  publish();
  for (int i = 0; i < 5; i++) {
    wait(kQuiet - kTick);
    EXPECT_EQ(load(pid), 42u);
  }
  world_.open(pid, 3);
  wait(seconds(50));
  EXPECT_EQ(world_.open(pid, 1), 42u);
}

TEST_F(PassesTest, ASubsetLoaderLeavesToo) {
  const pid_t pid = start();
  read(pid, 2);
  read(pid, 3);
  publish();
  wait(kGrace);
  EXPECT_EQ(read(pid, 2), 43u);
  EXPECT_EQ(read(pid, 3), 43u);
}

// The first time it may be in the middle, and look into the config before it opens another shard.
TEST_F(PassesTest, ASubsetLoaderThatBeginsWithItsConfigLeavesAtEverySecondLoad) {
  const pid_t pid = start();
  for (unsigned i = 0; i < 6; i++) {
    for (const std::uint32_t file : {kConfig, 1u, 2u}) {
      EXPECT_EQ(read(pid, file), 42u + i / 2 * 2) << i;
    }
    publish();
    wait(minutes(5));
  }
}

TEST_F(PassesTest, ASubsetLoaderThatOpensAnotherShardStaysForOneMoreLoad) {
  const pid_t pid = start();
  const auto load_part = [&](const std::vector<std::uint32_t>& files) {
    const std::uint64_t version = read(pid, kConfig);
    for (const std::uint32_t file : files) EXPECT_EQ(read(pid, file), version);
    publish();
    wait(minutes(5));
    return version;
  };
  EXPECT_EQ(load_part({2}), 42u);
  EXPECT_EQ(load_part({2, 1}), 42u) << "in the middle";
  EXPECT_EQ(load_part({1}), 42u) << "the load before had opened another";
  EXPECT_EQ(load_part({2, 1}), 42u) << "the load before had not opened all that it knows";
  EXPECT_EQ(load_part({2, 1}), 46u);
}

TEST_F(PassesTest, WhoHasAllAndKeepsThemMappedFollowsAfterFifteenMinutes) {
  const pid_t pid = start();
  for (std::uint32_t file = 1; file <= kShards; file++) world_.open(pid, file);
  publish();
  wait(minutes(15) - kTick);
  EXPECT_EQ(world_.open(pid, 2), 42u);
  wait(minutes(15));
  EXPECT_EQ(world_.open(pid, 2), 43u);
  EXPECT_EQ(world_.open(pid, 1), 43u);
}

TEST_F(PassesTest, ASubsetLoaderThatKeepsItsFilesOpenLeavesAfterFifteenMinutes) {
  const pid_t pid = start();
  world_.open(pid, 1);
  world_.open(pid, 2);
  publish();
  wait(minutes(15) - kTick);
  EXPECT_EQ(world_.open(pid, 3), 42u) << "it may still be loading";
  wait(minutes(15));
  EXPECT_EQ(world_.open(pid, 1), 43u);
}

TEST_F(PassesTest, SoDoesOneThatBeginsWithItsConfig) {
  const pid_t pid = start();
  for (const std::uint32_t file : {kConfig, 1u, 2u}) world_.open(pid, file);
  publish();
  wait(minutes(15) - kTick);
  EXPECT_EQ(world_.open(pid, kConfig), 42u);
  wait(minutes(15));
  for (const std::uint32_t file : {kConfig, 1u, 2u}) EXPECT_EQ(world_.open(pid, file), 43u);
}

TEST_F(PassesTest, WhoWantsNoMoreMayBeginAgainWithAnyFileThatItKnows) {
  for (const std::uint32_t begin : {kConfig, kIndex, 2u}) {
    const pid_t pid = start(fmt::format("session of {}", begin));
    for (const std::uint32_t file : {kConfig, kIndex, 1u, 2u}) read(pid, file);
    for (const bool follows : {false, true}) {
      const std::uint64_t before = world_.newest;
      publish();
      wait(kGrace);
      EXPECT_EQ(world_.read_link(pid), world_.newest);
      const std::uint64_t version = follows ? world_.newest : before;
      for (const std::uint32_t file : {begin, 2u, 1u}) EXPECT_EQ(read(pid, file), version);
    }
  }
}

TEST_F(PassesTest, WhoIsInTheMiddleGoesOnThoughSomebodyInItReadTheLink) {
  const pid_t pid = start();
  read(pid, kConfig);
  for (std::uint32_t file = 1; file <= kShards; file++) {
    EXPECT_EQ(read(pid, file), 42u);
    publish();
    wait(seconds(70));  // it quantizes the layer
    EXPECT_EQ(world_.read_link(pid), world_.newest);
    if (file == 1) {
      EXPECT_EQ(read(pid, kIndex), 42u) << "for the first time";
    }
  }
}

TEST_F(PassesTest, WhoReadsTheIndexBeforeEachShardGetsOneVersion) {
  const pid_t pid = start();
  read(pid, kConfig);
  for (std::uint32_t file = 1; file <= kShards; file++) {
    EXPECT_EQ(read(pid, kIndex), 42u) << file;
    EXPECT_EQ(read(pid, file), 42u) << file;
    publish();
    wait(seconds(70));
  }
  EXPECT_EQ(read(pid, kIndex), 45u) << "it has all";
}

TEST_F(PassesTest, WhoBeginsWithTheIndexAndReadsItBeforeEachShardGetsOneVersion) {
  for (const bool polls : {false, true}) {
    const pid_t pid = start(fmt::format("session of {}", polls));
    const std::uint64_t version = world_.newest;
    for (std::uint32_t file = 1; file <= kShards; file++) {
      EXPECT_EQ(read(pid, kIndex), version) << file;
      EXPECT_EQ(read(pid, file), version) << file;
      publish();
      wait(seconds(70));
      if (polls) world_.read_link(pid);
    }
    EXPECT_EQ(read(pid, kIndex), world_.newest) << "it has all";
  }
}

TEST_F(PassesTest, HoweverALoadReadsSmallFilesAndPausesItIsOneVersion) {
  const std::vector<std::vector<std::uint32_t>> small_files{
      {}, {kConfig}, {kIndex}, {kConfig, kIndex}};
  for (const auto& begins_with : small_files) {
    for (const auto& before_each : small_files) {
      for (const unsigned layers : {1u, 2u, 4u}) {
        for (const BootTime pause : {seconds(5), seconds(70), seconds(300)}) {
          for (const bool polls : {false, true}) {
            load_in_layers({begins_with, before_each, layers, pause, polls});
          }
        }
      }
    }
  }
}

TEST_F(PassesTest, WhoIsInTheMiddleIsToldItsVersionByALook) {
  const pid_t pid = start();
  for (std::uint32_t file = 1; file <= kShards; file++) {
    EXPECT_EQ(world_.look(pid), 42u);
    EXPECT_EQ(read(pid, kIndex), 42u);
    EXPECT_EQ(read(pid, file), 42u);
    if (file == 1) publish();
    wait(seconds(70));
  }
  EXPECT_EQ(world_.look(pid), 43u) << "it has all";
}

// exists() must not find a file that open() then does not.
TEST_F(PassesTest, ALookIsToldWhatAnOpenAfterItGets) {
  const pid_t pid = start();
  load(pid);
  publish();
  wait(seconds(10));
  EXPECT_EQ(world_.look(pid), 42u);
  EXPECT_EQ(world_.open_told(pid, kIndex, 42), 42u);
  wait(kGrace);
  EXPECT_EQ(world_.look(pid), 43u);
  EXPECT_EQ(world_.open_told(pid, kIndex, 43), 43u);
  load(pid);
  publish();
  wait(seconds(10));
  const std::uint64_t told = world_.read_link(pid);
  EXPECT_EQ(told, 44u);
  EXPECT_EQ(world_.look(pid), told) << "it knows of it, and loads it";
  EXPECT_EQ(world_.open_told(pid, kConfig, told), told);
}

TEST_F(PassesTest, ALoadThatBeginsAgainWithItsConfigIsOneVersion) {
  const pid_t pid = start();
  for (int i = 0; i < 6; i++) {
    const std::uint64_t version = read(pid, kConfig);
    publish();
    EXPECT_EQ(load(pid), version) << i;
    EXPECT_GE(version, 42u + 2u * static_cast<unsigned>(i / 2));
    wait(seconds(8));
  }
}

TEST_F(PassesTest, WhoWasToldOfANewerVersionInWordsLoadsIt) {
  const pid_t pid = start();
  for (int i = 0; i < 5; i++) {
    read(pid, kConfig);
    const std::uint64_t version = load(pid);
    publish();
    EXPECT_EQ(world_.read_link(pid), version) << "it is not done";
    EXPECT_EQ(read(pid, 2), version);
    wait(kQuiet);
    EXPECT_EQ(world_.read_link(pid), world_.newest);
    const std::uint64_t told = world_.newest;
    EXPECT_EQ(read(pid, i % 2 == 0 ? kIndex : 2), told);
    publish();
    EXPECT_EQ(load(pid), told);
    wait(kQuiet);
    world_.read_link(pid);
  }
}

TEST_F(PassesTest, ALoadThatBeginsAgainWithAnotherSmallFileIsOneVersion) {
  const pid_t pid = start();
  read(pid, kConfig);
  load(pid);
  for (int i = 0; i < 8; i++) {
    publish();
    wait(seconds(8));
    const std::uint64_t version = read(pid, kIndex);
    publish();
    EXPECT_EQ(load(pid), version) << i;
    EXPECT_GE(version + 6, world_.newest) << i;
  }
}

}  // namespace
}  // namespace weightfs::fs
