#include "store/local/wanted_deltas.hpp"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

using Ids = std::vector<DeltaId>;

DeltaId with_old(VersionPair versions) { return {versions, true}; }

TEST(WantedDeltasTest, NobodyAsksSoNothingIsWanted) {
  WantedDeltas wanted;
  for (std::uint64_t version = 2; version < 6; version++) {
    EXPECT_EQ(wanted.of(step_to(version)), Ids());
    wanted.note_made(step_to(version));
  }
}

TEST(WantedDeltasTest, WhoOpenedOneOfTheTwoNewestWantsTheNextOne) {
  WantedDeltas wanted;
  wanted.note_made(step_to(2));
  wanted.note_made(step_to(3));
  wanted.note_opened(with_old(step_to(2)));
  EXPECT_EQ(wanted.of(step_to(4)), Ids{with_old(step_to(4))});
  wanted.note_opened(step_to(3));
  EXPECT_EQ(wanted.of(step_to(4)), (Ids{step_to(4), with_old(step_to(4))}));
  EXPECT_EQ(wanted.of({3, 7}), (Ids{DeltaId{3, 7}, with_old({3, 7})})) << "several at once";
  wanted.note_made(step_to(4));
  EXPECT_EQ(wanted.of(step_to(5)), Ids{step_to(5)}) << "nobody opened the last two with old values";
  wanted.note_made(step_to(5));
  EXPECT_EQ(wanted.of(step_to(6)), Ids());
}

TEST(WantedDeltasTest, OldOnesAndOthersSayNothing) {
  WantedDeltas wanted;
  for (std::uint64_t version = 2; version < 9; version++) wanted.note_made(step_to(version));
  wanted.note_opened(step_to(5));
  wanted.note_opened(DeltaId{3, 8});  // no pass makes it
  wanted.note_opened(DeltaId{8, 7});
  EXPECT_EQ(wanted.of(step_to(9)), Ids());
  wanted.note_made({8, 11});
  wanted.note_opened(DeltaId{8, 11});
  EXPECT_EQ(wanted.of(step_to(12)), Ids{step_to(12)});
}

TEST(WantedDeltasTest, AfterARestartTheNewestVersionCounts) {
  WantedDeltas wanted;
  wanted.note_opened(step_to(3));
  EXPECT_EQ(wanted.of(step_to(9)), Ids());
  wanted.note_opened(step_to(8));
  EXPECT_EQ(wanted.of(step_to(9)), Ids{step_to(9)});
}

TEST(WantedDeltasTest, EnginesSayWhatTheyWillRead) {
  WantedDeltas wanted;
  wanted.set_engines([](std::uint64_t version) {
    return Ids{with_old({3, version}), with_old({3, version}), with_old({2, version})};
  });
  EXPECT_EQ(wanted.of({3, 5}), Ids{with_old({3, 5})});
  EXPECT_EQ(wanted.of({4, 5}), Ids());
  wanted.set_engines({});
  EXPECT_EQ(wanted.of({3, 5}), Ids());
}

}  // namespace
}  // namespace weightfs
