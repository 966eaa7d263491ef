// The rules of docs/SEMANTICS.md, "Passes": what begins a pass, who is in it, and until when.
// passes_again_test.cpp, passes_ranks_test.cpp and passes_small_files_test.cpp have loads that
// begin again, passes_model_test.cpp loaders of all kinds at random.
#include <gtest/gtest.h>

#include "tests/support/passes_fixture.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

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
