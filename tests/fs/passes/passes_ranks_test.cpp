// Ranks of one pass that begin again: together, and on one version.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/passes_fixture.hpp"

namespace weightfs::fs {
namespace {

TEST_F(PassesTest, RanksThatBeginAgainMeetInOnePass) {
  const pid_t first = start(), second = start();
  load(first);
  load(second);
  publish();
  wait(kGrace);
  EXPECT_EQ(load(first), 43u);
  publish();
  wait(seconds(20));
  EXPECT_EQ(load(second), 43u);
  wait(kGrace);
  wait(kGrace);
  EXPECT_EQ(load(second), 44u);
}

TEST_F(PassesTest, SubsetLoadersThatBeginWithTheirConfigMeetInOnePass) {
  const pid_t first = start(), second = start();
  for (unsigned i = 0; i < 6; i++) {
    const std::uint64_t version = 42 + i / 2 * 4;
    EXPECT_EQ(read(first, kConfig), version) << i;
    EXPECT_EQ(read(first, 1), version) << i;
    publish();
    wait(seconds(20));
    EXPECT_EQ(read(second, kConfig), version) << i;
    EXPECT_EQ(read(second, 2), version) << i;
    publish();
    wait(minutes(5));
  }
}

// One that begins with its config stays at its second load; the others wait for it.
TEST_F(PassesTest, RanksOfOnePassThatBeginAgainDifferentlyGetOneVersion) {
  for (auto files : std::vector<std::vector<std::vector<std::uint32_t>>>{
           {{kConfig, 1}, {2}, {3}},
           {{kIndex, kConfig, 1}, {kConfig, 2}, {3}},
           {{kConfig, 1, 2, 3}, {kConfig, 2}},
           {{kConfig, kIndex, 1, 2, 3}, {1, 2, 3}, {kConfig, 2}},
           {{kConfig, 1, 2}, {2, 3}}}) {
    for (std::size_t turn = 0; turn < files.size(); turn++) {  // who is the first
      std::rotate(files.begin(), files.begin() + 1, files.end());
      const auto ranks = start_ranks(files);
      std::uint64_t before = 0;
      for (unsigned i = 0; i < 8; i++) {
        const std::uint64_t newest = world_.newest;
        const std::uint64_t version = load_together(ranks);
        EXPECT_EQ(version, i % 2 == 0 ? newest : before) << i;
        before = version;
        wait(minutes(5));
      }
    }
  }
}

TEST_F(PassesTest, RanksOfOnePassBeginAgainTogetherInWhateverOrder) {
  auto ranks = start_ranks({{kConfig, 1}, {2}, {kConfig, kIndex, 1, 2, 3}, {3}});
  for (unsigned i = 0; i < 8; i++) {
    load_together(ranks);
    std::rotate(ranks.begin(), ranks.begin() + 1 + i % 2, ranks.end());
    wait(minutes(5));
  }
}

TEST_F(PassesTest, RanksThatStraddleTheGraceOnceMeetAgainAtTheNextLoad) {
  for (const bool is_other_first : {false, true}) {
    auto ranks = start_ranks({{kIndex, 1}, {kIndex, 2}});
    load_together(ranks, seconds(5));
    wait(kGrace - seconds(3));
    load_together(ranks, milliseconds(100));  // the second was not quiet for the grace
    if (is_other_first) std::swap(ranks[0], ranks[1]);
    std::uint64_t last = 0;
    for (unsigned i = 0; i < 6; i++) {
      wait(minutes(5));
      last = load_together(ranks);
    }
    EXPECT_GE(last + 4, world_.newest) << "they follow at every second load";
  }
}

TEST_F(PassesTest, RanksOfWhichOneOpensAnotherShardLaterGetOneVersion) {
  for (unsigned load = 1; load < 4; load++) {
    auto ranks = start_ranks({{kIndex, 1}, {kIndex, 2}});
    for (unsigned i = 0; i < 8; i++) {
      if (i == load) ranks[1].files.push_back(3);
      load_together(ranks);
      wait(minutes(5));
    }
  }
}

// The second is taken to be in the middle, and goes on; then both begin again.
TEST_F(PassesTest, WhoHasWaitedOnceWaitsNoMoreAndTheOthersMeetItLater) {
  const pid_t slow = start(), other = start();
  for (const std::uint32_t file : {kIndex, 1u}) EXPECT_EQ(read(slow, file), 42u);
  EXPECT_EQ(load(other), 42u);
  publish();
  wait(minutes(5));
  world_.read_link(other);
  EXPECT_EQ(world_.look(other), 42u) << "a look is told what an open gets";
  EXPECT_EQ(load(other), 42u) << "the other may be in the middle";
  for (const std::uint32_t file : {kIndex, 2u}) EXPECT_EQ(read(slow, file), 42u);
  wait(minutes(5));
  EXPECT_EQ(load(other), 43u) << "it has waited";
  for (const std::uint32_t file : {kIndex, 3u}) EXPECT_EQ(read(slow, file), 42u);
  publish();
  wait(minutes(5));
  EXPECT_EQ(load(slow), 44u) << "it has all";
  publish();
  EXPECT_EQ(load(other), 44u) << "both began in one pass";
}

TEST_F(PassesTest, WhoWaitsDoesNotLeaveInTheMiddleOfThatLoad) {
  for (const bool begins_with_small : {false, true}) {
    start_beside_a_part();
    const std::uint64_t version = world_.newest;
    publish();
    wait(minutes(5));
    std::vector<std::uint32_t> files{1, 1, 2, 1, 2, 2, 3};  // for longer than the grace
    if (begins_with_small) files.insert(files.begin(), {kConfig, kIndex});
    for (const std::uint32_t file : files) {
      EXPECT_EQ(read(rank_, file), version) << file;
      wait(seconds(12));
      world_.read_link(rank_);
    }
    EXPECT_EQ(read(rank_, kIndex), world_.newest) << "the load is done";
  }
}

// Once it has stayed for another.
TEST_F(PassesTest, ALoadWithPausesBetweenItsFilesIsOneVersion) {
  for (const bool ends : {false, true}) {
    for (const std::uint32_t first : {1u, 2u}) {
      const pid_t part = start_beside_a_part();
      const std::uint64_t version = world_.newest;
      publish();
      for (std::uint32_t i = 0; i < kShards; i++) {
        wait(i == 0 ? kGrace + seconds(10) : minutes(10));
        EXPECT_EQ(read(rank_, (first + i - 1) % kShards + 1), version) << i;
        if (ends && i == 0) world_.end(part);
      }
      wait(kGrace);
      EXPECT_EQ(read(rank_, first), world_.newest);
    }
  }
}

// What a link says is what is opened then.
TEST_F(PassesTest, WhoLookedAtAShardIsToldTheVersionThatItGets) {
  start_beside_a_part();
  const std::uint64_t version = world_.newest;
  publish();
  wait(minutes(5));
  EXPECT_EQ(read(rank_, 2), version);
  wait(minutes(5));
  const std::uint64_t told = world_.read_link(rank_);
  for (const std::uint32_t file : {3u, 1u, 2u}) EXPECT_EQ(read(rank_, file), told) << file;
}

// A look at one of them is no load that it would be in the middle of.
TEST_F(PassesTest, WhoLookedAtAShardReloadsAllOfOneVersion) {
  start_beside_a_part();
  const std::uint64_t version = world_.newest;
  publish();
  wait(minutes(5));
  EXPECT_EQ(read(rank_, 2), version) << "it stays for the part loader";
  wait(minutes(5));
  for (std::uint32_t file = 1; file <= kShards; file++) {
    EXPECT_EQ(read(rank_, file), world_.newest) << file;
    wait(kGrace + seconds(10));
  }
}

// It compiles in between.  By then nobody may be left for whom it waits.
TEST_F(PassesTest, WhoWaitsGetsTheWeightsOfItsConfig) {
  for (const bool ends : {false, true}) {
    const pid_t part = start_beside_a_part();
    const std::uint64_t version = world_.newest;
    publish();
    wait(minutes(14));
    EXPECT_EQ(read(rank_, kConfig), version);
    if (ends) world_.end(part);
    wait(seconds(70));
    EXPECT_EQ(read(rank_, kIndex), version);
    wait(seconds(70));
    EXPECT_EQ(load(rank_), version);
    wait(kGrace);
    EXPECT_EQ(read(rank_, 2), world_.newest);
  }
}

TEST_F(PassesTest, WhoWaitsAndOpensNoWeightsFollowsWithinFifteenMinutes) {
  start_beside_a_part();
  publish();
  wait(minutes(5));
  EXPECT_EQ(read(rank_, kConfig), 42u);
  wait(minutes(15) - kTick);
  EXPECT_EQ(read(rank_, kConfig), 42u);
  wait(kTick);
  EXPECT_EQ(read(rank_, kConfig), 43u);
}

// A thread pool: whichever shard comes first.
TEST_F(PassesTest, WhoHasAllAndBeginsAgainWithAnotherShardFollowsBesideAPartLoader) {
  start_beside_a_part();
  std::uint64_t before = world_.newest;
  for (unsigned i = 0; i < 6; i++) {
    publish();
    wait(minutes(2));
    const std::uint64_t version = i == 0 ? before : world_.newest;
    for (const std::uint32_t file : {2 + i % 2, 1u, 3 - i % 2}) {
      EXPECT_EQ(read(rank_, file), version) << i << ", file " << file;
    }
  }
}

// All at once, when the slowest rank is ready.
TEST_F(PassesTest, RanksThatHaveAllAndLookAgainAtSomeShardsGetOneVersion) {
  const pid_t fast = start(), slow = start();
  load(fast);
  publish();
  for (std::uint32_t file = 1; file <= kShards; file++) {
    wait(seconds(30));
    EXPECT_EQ(read(slow, file), 42u);
  }
  for (const pid_t rank : {fast, slow}) EXPECT_EQ(read(rank, 3), 42u);
  wait(kGrace);
  for (const pid_t rank : {fast, slow}) EXPECT_EQ(read(rank, 3), 43u);
}

// The looks decided nothing for the reload, with whatever shard that begins.
TEST_F(PassesTest, RanksThatHaveLookedAgainAtSomeShardsReloadOneVersion) {
  for (std::uint32_t first = 1; first <= kShards; first++) {
    for (const std::uint32_t looked : {2u, 3u}) {
      const auto ranks = start_ranks({{}, {}, {}});
      const pid_t slow = ranks[2].pid;
      const std::uint64_t version = load(ranks[0].pid);
      EXPECT_EQ(load(ranks[1].pid), version);
      publish();
      for (std::uint32_t file = 1; file <= kShards; file++) {
        wait(seconds(30));
        EXPECT_EQ(read(slow, file), version);
      }
      for (const Rank& rank : ranks) EXPECT_EQ(read(rank.pid, looked), version);
      wait(minutes(6));
      for (const Rank& rank : ranks) EXPECT_EQ(read(rank.pid, first), world_.newest) << first;
    }
  }
}

TEST_F(PassesTest, ALoadThatBeginsWithAnotherShardInALivePassIsOneVersion) {
  const pid_t rank = start(), other = start();
  load(rank);
  publish();
  wait(seconds(55));
  read(other, 1);
  wait(seconds(5));
  for (const std::uint32_t file : {2u, 3u, 1u}) {
    EXPECT_EQ(read(rank, file), 42u) << file;
    wait(seconds(40));
    world_.read_link(rank);
  }
  wait(kGrace);
  for (const std::uint32_t file : {3u, 1u, 2u}) EXPECT_EQ(read(rank, file), 43u) << file;
}

// The first OPEN was led to another version, and now it would wait.
TEST_F(PassesTest, ARetryThatEndsInAnotherPassHasNotWaitedThere) {
  const pid_t rank = start(), part = start();
  load(rank);
  publish();
  wait(seconds(30));
  read(part, 1);
  wait(seconds(30));
  PassOpen open{.reader = world_.reader(rank),
                .link = "latest",
                .version = 42,
                .file = 1,
                .name = 1,
                .kind = PassFile::weights,
                .weights_count = kShards,
                .newest = 43};
  EXPECT_EQ(world_.passes.opened(open, world_.now).wanted, 43u);
  open.version = 43;
  open.is_retry = true;
  EXPECT_EQ(read(part, kIndex), 42u);
  EXPECT_EQ(world_.passes.opened(open, world_.now).wanted, 0u);
  const pid_t other = start();
  for (const std::uint32_t file : {kIndex, 1u}) EXPECT_EQ(read(other, file), 43u);
  EXPECT_EQ(load(rank), 43u);
  publish();
  wait(minutes(5));
  EXPECT_EQ(load(rank), 43u) << "for the sake of the other";
}

}  // namespace
}  // namespace weightfs::fs
