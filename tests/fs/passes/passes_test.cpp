// Every rule of docs/SEMANTICS.md, "Passes", with a clock that the tests move and processes that
// they make up.  passes_model_test.cpp has loaders of all kinds at random.
#include "fs/passes/passes.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/pass_world.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint32_t kShards = 3;
constexpr auto kConfig = PassWorld::kConfig, kIndex = PassWorld::kIndex;
constexpr auto kGrace = seconds(60);
constexpr auto kQuiet = seconds(2);
constexpr auto kTick = milliseconds(1);
const std::vector<std::vector<std::uint32_t>> kSmallFiles{
    {}, {kConfig}, {kIndex}, {kConfig, kIndex}};

class PassesTest : public testing::Test {
 protected:
  /// open(2), close(2).
  std::uint64_t read(pid_t pid, std::uint32_t file) {
    const std::uint64_t version = world_.open(pid, file);
    world_.close(pid);
    return version;
  }
  /// All shards, one at a time.  Returns: their version.
  std::uint64_t load(pid_t pid) {
    const std::uint64_t version = read(pid, 1);
    for (std::uint32_t file = 2; file <= kShards; file++) EXPECT_EQ(read(pid, file), version);
    return version;
  }
  /// How a process works on one layer after another.
  struct Layers {
    std::vector<std::uint32_t> begins_with, before_each;  // small files
    unsigned of_each_shard = 1;  // but the first: opening that again after a pause begins a load
    BootTime pause{};
    bool polls = false;
  };
  /// Opens a shard for each of its layers.  Expects one version, whatever is published meanwhile.
  void load_in_layers(const Layers& layers) {
    const pid_t pid = start(fmt::format("session {}", world_.processes.size()));
    const std::uint64_t version = world_.newest;
    for (const std::uint32_t file : layers.begins_with) EXPECT_EQ(read(pid, file), version);
    for (unsigned layer = 0; layer < 1 + (kShards - 1) * layers.of_each_shard; layer++) {
      const std::uint32_t shard = 1 + (layer + layers.of_each_shard - 1) / layers.of_each_shard;
      for (const std::uint32_t file : layers.before_each) EXPECT_EQ(read(pid, file), version);
      EXPECT_EQ(read(pid, shard), version) << layer;
      if (shard == kShards) return;  // it has all
      publish();
      wait(layers.pause);
      if (layers.polls) world_.read_link(pid);
    }
  }
  /// The files that a rank opens in each load.
  struct Rank {
    std::vector<std::uint32_t> files;
    pid_t pid = 0;
  };
  std::vector<Rank> start_ranks(const std::vector<std::vector<std::uint32_t>>& files) {
    const std::string session = fmt::format("session {}", world_.processes.size());
    std::vector<Rank> ranks;
    for (const auto& each : files) ranks.push_back({each, start(session)});
    return ranks;
  }
  /// One rank after another.  Expects one version, and publishes another after each of them.
  std::uint64_t load_together(const std::vector<Rank>& ranks, BootTime between = seconds(1)) {
    std::uint64_t version = 0;
    for (const Rank& rank : ranks) {
      if (version != 0) wait(between);
      for (const std::uint32_t file : rank.files) {
        const std::uint64_t got = read(rank.pid, file);
        if (version == 0) version = got;
        EXPECT_EQ(got, version) << "file " << file << " of process " << rank.pid;
      }
      publish();
    }
    return version;
  }
  /// A rank that has all, and reads no small file, in one pass with a process that has a part and
  /// is idle.  Returns: that.
  pid_t start_beside_a_part() {
    const std::string session = fmt::format("session {}", world_.processes.size());
    const pid_t part = start(session);
    rank_ = start(session);
    const std::uint64_t version = world_.newest;
    for (const std::uint32_t file : {kConfig, 1u}) EXPECT_EQ(read(part, file), version);
    EXPECT_EQ(load(rank_), version);
    return part;
  }
  /// By a process that ends.
  std::uint64_t cat(std::uint32_t file, const std::string& session = "session 1") {
    const pid_t pid = world_.start(session);
    wait(milliseconds(20));
    const std::uint64_t version = read(pid, file);
    world_.end(pid);
    wait(milliseconds(20));
    return version;
  }
  pid_t start(const std::string& session = "session 1", pid_t parent = 0) {
    return world_.start(session, parent);
  }
  void wait(BootTime time) { world_.pass_time(time); }
  void publish() { world_.newest++; }

  PassWorld world_{kShards};
  pid_t rank_ = 0;  // start_beside_a_part()
};

// ---- what begins a pass, and who is in it ----

TEST_F(PassesTest, ReadlinkAloneBeginsNothing) {
  const pid_t pid = start();
  EXPECT_EQ(world_.link(pid), 42u);
  publish();
  EXPECT_EQ(world_.link(pid), 43u);
  EXPECT_TRUE(world_.passes.is_empty());
}

TEST_F(PassesTest, WhoHasOpenedAFileGetsTheOthersOfThatVersion) {
  const pid_t pid = start(), stranger = start("session 2");
  EXPECT_EQ(read(pid, 1), 42u);
  publish();
  EXPECT_EQ(world_.link(pid), 42u);
  EXPECT_EQ(read(pid, 2), 42u);
  EXPECT_EQ(world_.link(stranger), 43u);
  EXPECT_EQ(load(stranger), 43u);
  EXPECT_EQ(read(pid, 3), 42u) << "what others begin moves nobody";
  EXPECT_TRUE(world_.passes.has(42));
  EXPECT_FALSE(world_.passes.has(41));
}

TEST_F(PassesTest, OpeningAVersionByNameNeverChangesWhatLatestSays) {
  const pid_t pid = start();
  world_.open_by_name(pid, 41, 1);
  EXPECT_TRUE(world_.passes.is_empty());
  read(pid, 1);
  publish();
  world_.open_by_name(pid, 43, 2);
  EXPECT_EQ(world_.link(pid), 42u);
}

TEST_F(PassesTest, WhatIsOpenedByNameCountsForTheLoadOfItsVersion) {
  const pid_t pid = start();
  world_.open(pid, 1);
  world_.open_by_name(pid, 42, 2);
  world_.open_by_name(pid, 42, 3);
  world_.close(pid);
  publish();
  wait(kQuiet);
  EXPECT_EQ(world_.link(pid), 43u) << "it has all";
}

TEST_F(PassesTest, OfTwoThatBeginAtOnceTheSecondIsLedToTheVersionOfTheFirst) {
  const pid_t first = start(), second = start();
  world_.told_newest = world_.link(second);
  publish();
  EXPECT_EQ(read(first, 1), 43u);
  EXPECT_EQ(world_.open_told(second, 1, 42), 43u);
  EXPECT_EQ(world_.looked_again, 1u);
}

TEST_F(PassesTest, WhoWasToldTheNewestBeginsOnThatThoughItIsNotAnyMore) {
  const pid_t pid = start();
  world_.told_newest = world_.link(pid);
  publish();
  EXPECT_EQ(world_.open_told(pid, 1, 42), 42u);
  EXPECT_EQ(world_.looked_again, 0u) << "what it has looked at is what it opens";
}

TEST_F(PassesTest, EachSymlinkHasPassesOfItsOwn) {
  const pid_t pid = start();
  EXPECT_EQ(world_.open(pid, 1, "latest"), 42u);
  publish();
  EXPECT_EQ(world_.open(pid, 1, "tags/best"), 43u);
  publish();
  EXPECT_EQ(world_.open(pid, 2, "latest"), 42u);
  EXPECT_EQ(world_.open(pid, 2, "tags/best"), 43u);
}

// ---- newcomers ----

TEST_F(PassesTest, RanksThatWereStartedBeforeThePassWasFullJoinItHoweverLate) {
  const pid_t first = start(), late = start();
  EXPECT_EQ(load(first), 42u);
  publish();
  wait(seconds(30));
  EXPECT_EQ(load(late), 42u);
}

TEST_F(PassesTest, AProgramThatIsStartedAfterThePassWasFullGetsTheNewest) {
  EXPECT_EQ(load(start()), 42u);
  publish();
  wait(milliseconds(10));
  EXPECT_EQ(load(start()), 43u);
}

TEST_F(PassesTest, NewcomersJoinTheOldestPassThatMayHaveThem) {
  const pid_t rank = start(), late = start();
  load(rank);
  publish();
  wait(seconds(1));
  EXPECT_EQ(read(start(), 1), 43u);
  publish();
  EXPECT_EQ(read(late, 1), 42u);
  wait(seconds(1));
  EXPECT_EQ(read(start(), 1), 43u) << "the second pass is not full";
}

TEST_F(PassesTest, APassTakesNobodyTheGraceAfterItsLastProgress) {
  const pid_t first = start(), late = start();
  read(first, 1);
  publish();
  wait(kGrace - kTick);
  read(first, 1);  // no progress
  wait(kTick);
  EXPECT_EQ(read(late, 1), 43u);
}

TEST_F(PassesTest, EachFileThatAProcessHadNotOpenedIsProgress) {
  const pid_t first = start(), second = start(), late = start();
  load(first);
  publish();
  for (std::uint32_t file = 1; file <= kShards; file++) {
    wait(seconds(50));
    EXPECT_EQ(read(second, file), 42u);
  }
  wait(seconds(50));
  EXPECT_EQ(read(late, 1), 42u);
}

TEST_F(PassesTest, WhatIsOpenOrMappedKeepsAPassOpenForNewcomersUntilItIsFull) {
  const pid_t first = start();
  read(first, 1);
  world_.processes.at(first).mapped.insert(42);
  publish();
  for (int i = 0; i < 14 * 60; i++) wait(seconds(1));
  EXPECT_EQ(world_.link(start()), 42u);
  for (int i = 0; i < 60; i++) wait(seconds(1));
  EXPECT_EQ(world_.link(start()), 43u) << "15 minutes at most";
}

// The kernel sends RELEASE only when a mapping is gone.
TEST_F(PassesTest, AFileThatStaysOpenKeepsAPassOpenForNewcomersForFifteenMinutesToo) {
  const pid_t first = start();
  world_.open(first, 1);
  publish();
  for (int i = 0; i < 14 * 60; i++) wait(seconds(1));
  EXPECT_EQ(world_.link(start()), 42u);
  for (int i = 0; i < 60; i++) wait(seconds(1));
  EXPECT_EQ(world_.link(start()), 43u);
  EXPECT_EQ(read(first, 2), 42u) << "its own load goes on";
}

TEST_F(PassesTest, AFullPassIsNotKeptByWhatIsMapped) {
  const pid_t first = start(), late = start();
  load(first);
  world_.processes.at(first).mapped.insert(42);
  publish();
  for (int i = 0; i < 60; i++) wait(seconds(1));
  EXPECT_EQ(read(late, 1), 43u) << "transformers keeps every shard mapped for the model's life";
}

TEST_F(PassesTest, AFileThatIsReadForMinutesIsOneStep) {
  const std::string shell = "session 1";
  publish();
  for (std::uint32_t file = 1; file <= kShards; file++) {
    const pid_t pid = start(shell);
    EXPECT_EQ(world_.open(pid, file), 43u);
    publish();
    wait(minutes(20));
    world_.end(pid);
    world_.newest = 43 + file;
    wait(seconds(50));
  }
}

// ---- members ----

TEST_F(PassesTest, AMemberThatPausesStays) {
  const pid_t pid = start();
  EXPECT_EQ(read(pid, 1), 42u);
  publish();
  for (int i = 0; i < 14 * 60; i++) wait(seconds(1));
  EXPECT_EQ(read(pid, 2), 42u) << "it lives, and has not all";
  for (int i = 0; i < 15 * 60; i++) wait(seconds(1));
  EXPECT_EQ(read(pid, 3), 43u);
}

TEST_F(PassesTest, AMemberThatHasAllStaysForTheGrace) {
  const pid_t pid = start();
  load(pid);
  publish();
  wait(kGrace - kTick);
  EXPECT_EQ(read(pid, 2), 42u);
  wait(kGrace);
  EXPECT_EQ(read(pid, 2), 43u);
}

TEST_F(PassesTest, WhoLostItsPassNeverGoesToAnOlderVersion) {
  const pid_t first = start(), second = start();
  EXPECT_EQ(read(first, 1), 42u);
  EXPECT_EQ(read(second, 2), 42u);
  publish();
  wait(kGrace);
  EXPECT_EQ(read(first, 1), 43u);
  EXPECT_EQ(read(second, 3), 42u) << "their first pass lives";
  world_.passes.end_version(43);
  EXPECT_EQ(world_.link(first), 43u);
  EXPECT_EQ(read(first, 2), 43u);
}

TEST_F(PassesTest, AMemberThatIsDoneIsToldTheNewestAndOpensItsOwn) {
  const pid_t pid = start();
  load(pid);
  publish();
  EXPECT_EQ(world_.link(pid), 42u);
  wait(kQuiet);
  EXPECT_EQ(world_.link(pid), 43u) << "who polls sees news";
  EXPECT_EQ(read(pid, kConfig), 42u) << "generation_config.json is read when the weights are there";
  EXPECT_EQ(world_.looked_again, 1u);
  EXPECT_EQ(read(pid, 2), 42u);
}

TEST_F(PassesTest, WhoHasAFileOpenIsNotDone) {
  const pid_t pid = start();
  load(pid);
  world_.open(pid, 3);
  publish();
  wait(seconds(30));
  EXPECT_EQ(world_.link(pid), 42u);
  wait(seconds(30));
  EXPECT_EQ(world_.link(pid), 43u) << "Python's mmap keeps a descriptor for good";
  EXPECT_EQ(world_.open(pid, 2), 42u);
  wait(kGrace);
  EXPECT_EQ(world_.open(pid, 1), 43u);
}

TEST_F(PassesTest, AMemberInTheMiddleIsToldItsVersionForTheGrace) {
  const pid_t pid = start();
  read(pid, 1);
  publish();
  wait(seconds(30));
  EXPECT_EQ(world_.link(pid), 42u);
  wait(seconds(30));
  EXPECT_EQ(world_.link(pid), 43u) << "it may have wanted no more than that";
  EXPECT_EQ(read(pid, 2), 42u);
}

// ---- leaving ----

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
  for (const auto& begins_with : kSmallFiles) {
    for (const auto& before_each : kSmallFiles) {
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

// ---- short-lived readers ----

TEST_F(PassesTest, AShellThatReadsEachShardByAProcessOfItsOwnGetsOneVersion) {
  start();  // the shell
  for (std::uint32_t file = 1; file <= kShards; file++) {
    EXPECT_EQ(cat(file), 42u);
    publish();
    wait(seconds(30));
  }
  EXPECT_EQ(cat(1), 45u) << "the next time";
}

TEST_F(PassesTest, WhoReadsOneShardAgainAndAgainFollows) {
  start();
  EXPECT_EQ(cat(1), 42u);
  for (std::uint64_t version = 43; version < 50; version++) {
    publish();
    wait(seconds(30));
    EXPECT_EQ(cat(1), version);
  }
}

TEST_F(PassesTest, WhoReadsItWithoutAPauseFollowsAfterTheGrace) {
  start();
  EXPECT_EQ(cat(1), 42u);
  publish();
  for (int i = 0; i < 59; i++) {
    wait(milliseconds(960));
    EXPECT_EQ(cat(1), 42u);
  }
  wait(seconds(2));
  EXPECT_EQ(cat(1), 43u);
}

TEST_F(PassesTest, TheRestOfALoopThatBeginsAgainFollowsItsFirst) {
  start();
  EXPECT_EQ(cat(1), 42u);
  EXPECT_EQ(cat(2), 42u);
  publish();
  wait(seconds(10));
  EXPECT_EQ(cat(1), 43u);
  publish();
  EXPECT_EQ(cat(2), 43u);
}

// ---- config and index ----

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

TEST_F(PassesTest, AProgramThatReadsTheConfigAfterALoadGetsTheNewest) {
  load(start());
  publish();
  wait(seconds(1));
  EXPECT_EQ(cat(kConfig), 43u);
  publish();
  EXPECT_EQ(cat(kConfig), 44u) << "who has only read that holds nothing when it is gone";
}

// ---- a host that keeps only some of the shards ----

TEST_F(PassesTest, AllAreThoseThatAreKeptUntilSomebodyOpensAnother) {
  world_.absent_count = 1;
  const pid_t pid = start();
  read(pid, 1);
  read(pid, 2);
  publish();
  wait(kQuiet);
  EXPECT_EQ(world_.link(pid), 43u);
  EXPECT_EQ(load(start()), 43u);
  EXPECT_EQ(read(pid, 3), 42u);
  const pid_t other = start("session 2");
  read(other, 3);
  publish();
  wait(kQuiet);
  EXPECT_EQ(world_.link(other), 43u) << "it wants all";
}

// ---- processes that cannot be seen ----

TEST_F(PassesTest, ThoseThatCannotBeSeenAreOneUntilTheGraceAfterTheLastOpen) {
  const std::string session = "invisible, uid 7";
  const pid_t first = world_.start(session, 0, 7), second = world_.start(session, 0, 7);
  load(first);
  publish();
  wait(seconds(30));
  EXPECT_EQ(world_.link(second), 42u);
  EXPECT_EQ(load(second), 42u);
  wait(kGrace - kTick);
  EXPECT_EQ(world_.link(first), 42u);
  wait(kTick);
  EXPECT_EQ(load(first), 43u);
}

// ---- by hand, status, bounds ----

TEST_F(PassesTest, AnEndByHandIsAtOnce) {
  const pid_t pid = start(), stranger = start("session 2");
  read(pid, 1);
  read(stranger, 1);
  publish();
  EXPECT_EQ(world_.passes.end_session("session 9"), 0u);
  EXPECT_EQ(world_.passes.end_session("session 1"), 1u);
  EXPECT_EQ(world_.link(pid), 43u);
  EXPECT_EQ(world_.link(stranger), 42u);
  EXPECT_EQ(world_.passes.end_version(42), 1u);
  EXPECT_EQ(read(pid, 2), 43u);
  EXPECT_EQ(world_.passes.end_all(), 1u);
  EXPECT_FALSE(world_.passes.has(43));
}

TEST_F(PassesTest, TheListTellsWhoLoadsWhat) {
  const pid_t pid = start(), sibling = start();
  world_.open(pid, 1);
  wait(seconds(3));
  load(sibling);
  load(start("session 3"));
  wait(seconds(2));
  const auto list = world_.passes.list(world_.now);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].session, "session 1");
  EXPECT_EQ(list[0].link, "latest");
  EXPECT_EQ(list[0].command, "loader");
  EXPECT_EQ(list[0].version, 42u);
  EXPECT_EQ(list[0].age, seconds(5));
  EXPECT_TRUE(list[0].is_full);
  EXPECT_TRUE(list[0].is_loading);
  ASSERT_EQ(list[0].members.size(), 2u);
  EXPECT_EQ(list[0].members[0].pid, pid);
  EXPECT_FALSE(list[1].is_loading);
}

TEST_F(PassesTest, APassEndsWithItsLastMember) {
  const pid_t pid = start();
  load(pid);
  world_.end(pid);
  wait(kGrace - kQuiet);
  EXPECT_TRUE(world_.passes.has(42)) << "ranks may be on their way";
  start();
  wait(kQuiet);
  EXPECT_FALSE(world_.passes.has(42));
  EXPECT_TRUE(world_.passes.is_empty());
}

TEST_F(PassesTest, PassesOfDeadSessionsGoAtOnce) {
  const pid_t pid = start("session 5");
  read(pid, 1);
  world_.end(pid);
  wait(kQuiet);
  wait(kQuiet);
  EXPECT_FALSE(world_.passes.has(42));
}

TEST_F(PassesTest, ShortLivedSessionsTakeNoRoomFromAnybody) {
  for (int i = 0; i < 16500; i++) {
    const pid_t pid = world_.start(fmt::format("session {}", i), 0, 1000);
    read(pid, i % 2 == 0 ? kConfig : 1);
    world_.end(pid);
    world_.now += milliseconds(1);
  }
  const pid_t other = start("session of another");
  EXPECT_EQ(read(other, 1), 42u);
  EXPECT_FALSE(world_.is_refused);
  publish();
  EXPECT_EQ(read(other, 2), 42u);
  wait(seconds(5));
  wait(seconds(5));
  EXPECT_EQ(world_.passes.list(world_.now).size(), 1u);
}

TEST_F(PassesTest, AUidThatHasTooManyGetsNoMoreAndTheOthersDo) {
  for (std::size_t i = 0; i < kPassesMax; i++) {
    read(world_.start(fmt::format("session {}", i), 0, 1000), 1);
  }
  EXPECT_TRUE(world_.passes.full_tables().empty()) << "nobody was refused";
  const pid_t late = world_.start("late", 0, 1000), other = world_.start("other", 0, 1001);
  EXPECT_EQ(read(late, 1), 42u);
  EXPECT_TRUE(world_.is_refused);
  EXPECT_EQ(read(other, 1), 42u);
  EXPECT_FALSE(world_.is_refused);
  publish();
  EXPECT_EQ(read(late, 2), 43u);
  EXPECT_EQ(read(other, 2), 42u);
  const auto full = world_.passes.full_tables();
  ASSERT_EQ(full.size(), 1u);
  EXPECT_EQ(full[0].uid, 1000u);
  EXPECT_EQ(full[0].refused, 2u);
  for (const auto& [pid, process] : world_.processes) {
    if (process.uid == 1000) world_.end(pid);
  }
  wait(seconds(3));
  wait(seconds(10));
  EXPECT_TRUE(world_.passes.full_tables().empty());
}

TEST(PassTimesTest, TheQuietIsAThirdOfAShortGraceOrTwoSeconds) {
  EXPECT_EQ(PassTimes::of(seconds(60)).quiet, seconds(2));
  EXPECT_EQ(PassTimes::of(milliseconds(600)).quiet, milliseconds(200));
  EXPECT_EQ(PassTimes::of(seconds(60)).most, minutes(15));
  EXPECT_EQ(PassTimes::of(std::chrono::hours(1)).most, std::chrono::hours(1));
}

TEST(PassFileTest, WeightsAreSafetensorsFiles) {
  EXPECT_EQ(pass_file_of("model-00001-of-00002.safetensors"), PassFile::weights);
  EXPECT_EQ(pass_file_of("unet/model.safetensors"), PassFile::weights);
  EXPECT_EQ(pass_file_of("model.safetensors.index.json"), PassFile::small);
  EXPECT_EQ(pass_file_of("config.json"), PassFile::small);
}

}  // namespace
}  // namespace weightfs::fs
