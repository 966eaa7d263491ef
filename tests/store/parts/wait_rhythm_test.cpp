// When a host that waits for other parts asks for them, and completes their version.
#include "store/parts/wait_rhythm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "store/parts/part_set.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;

constexpr Clock::time_point kNow{};
constexpr Clock::duration kTick{1};

milliseconds completing(unsigned parts) { return parts * WaitRhythm::kCompletingPerPart; }

/// One that has looked and missed some.
WaitRhythm waiting(unsigned parts) {
  WaitRhythm rhythm(parts);
  static_cast<void>(rhythm.pause());
  return rhythm;
}

/// How long after kNow, when the last part is found, the host completes the version.
Clock::duration turn_of(WaitRhythm rhythm) {
  Clock::duration early{-1}, late = std::chrono::hours(1);
  EXPECT_FALSE(rhythm.completes(kNow));
  while (early + kTick < late) {
    const Clock::duration middle = early + (late - early) / 2;
    (rhythm.completes(kNow + middle) ? late : early) = middle;
  }
  return late;
}

TEST(WaitRhythm, WhoFindsAllAtItsFirstLookCompletesAtOnce) {
  for (const unsigned parts : {2U, kPartsMax}) {
    EXPECT_TRUE(WaitRhythm(parts).completes(kNow));
    EXPECT_FALSE(waiting(parts).completes(kNow)) << "another one does";
  }
}

TEST(WaitRhythm, TheOthersHaveTheirTurnsWhenItShouldBeDoneAndNotAllAtOnce) {
  for (const unsigned parts : {2U, 8U, 64U, kPartsMax}) {
    std::vector<Clock::duration> turns;
    for (unsigned part = 1; part < std::max(parts, 32U); part++) {
      turns.push_back(turn_of(waiting(parts)));
    }
    const auto [first, last] = std::ranges::minmax(turns);
    EXPECT_GE(first, completing(parts)) << parts;
    EXPECT_LT(first, last) << parts;
  }
}

// If the parts make no version, each finds it out at its turn: the last of 256 after 7 minutes.
TEST(WaitRhythm, NobodysTurnIsLongAfterThat) {
  for (const unsigned parts : {2U, 8U, 64U, 256U, kPartsMax}) {
    for (unsigned times = 0; times < 100; times++) {
      WaitRhythm rhythm = waiting(parts);
      EXPECT_FALSE(rhythm.completes(kNow));
      EXPECT_TRUE(rhythm.completes(kNow + completing(parts) + WaitRhythm::kSpreadMax)) << parts;
    }
  }
}

TEST(WaitRhythm, AllHostsTogetherAskForAThousandRecordsInASecond) {
  for (const unsigned parts : {2U, 64U, kPartsMax}) {
    WaitRhythm rhythm(parts);
    EXPECT_TRUE(rhythm.asks(kNow));
    const milliseconds pause{parts * WaitRhythm::kPartsAsked};
    EXPECT_FALSE(rhythm.asks(kNow + pause - kTick));
    EXPECT_TRUE(rhythm.asks(kNow + pause));
    EXPECT_FALSE(rhythm.asks(kNow + pause));
  }
}

TEST(WaitRhythm, PausesGrowToASecond) {
  WaitRhythm rhythm(2);
  EXPECT_LE(rhythm.pause(), milliseconds(25));
  for (unsigned looks = 0; looks < 20; looks++) EXPECT_GT(rhythm.pause(), milliseconds(0));
  for (unsigned looks = 0; looks < 20; looks++) {
    const Clock::duration pause = rhythm.pause();
    EXPECT_TRUE(pause >= milliseconds(750) && pause <= milliseconds(1250));
  }
}

}  // namespace
}  // namespace weightfs
