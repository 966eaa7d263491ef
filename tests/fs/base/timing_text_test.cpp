#include "fs/base/timing_text.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace weightfs::fs {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(TimingText, DurationsAreShort) {
  EXPECT_EQ(duration_text(nanoseconds(0)), "0.0ms");
  EXPECT_EQ(duration_text(microseconds(9949)), "9.9ms");
  EXPECT_EQ(duration_text(microseconds(9950)), "10ms");
  EXPECT_EQ(duration_text(milliseconds(999)), "999ms");
  EXPECT_EQ(duration_text(microseconds(999'600)), "1.0s");
  EXPECT_EQ(duration_text(milliseconds(99'940)), "99.9s");
  EXPECT_EQ(duration_text(milliseconds(99'960)), "2m");
  EXPECT_EQ(duration_text(minutes(99)), "99m");
  EXPECT_EQ(duration_text(hours(26)), "26h");
}

TEST(TimingText, TellsThePhasesThatMatter) {
  VersionTiming timing{.attempts = 2,
                       .base = 41,
                       .deltas = 3,
                       .plan = milliseconds(1),
                       .build = milliseconds(480),
                       .flip = milliseconds(31),
                       .work = {.fetch = milliseconds(212), .fetched_bytes = 12u << 20}};
  EXPECT_EQ(shown_text(timing),
            "512ms after its manifest was seen (build 480ms, flip 31ms); 2 attempts");
  EXPECT_EQ(
      build_text(timing),
      "version 41 + 3 deltas: fetch 12.0 MiB in 212ms; stall 0.0ms, decode 0.0ms, write 0.0ms");
  timing.work.seeded_bytes = 3ull << 30;
  EXPECT_TRUE(
      build_text(timing).starts_with("version 41 + 3 deltas: seed 3.0 GiB, fetch 12.0 MiB"));
  timing.work.seeded_bytes = 0;
  timing.early_bytes = 9u << 20;
  EXPECT_TRUE(
      build_text(timing).starts_with("version 41 + 3 deltas: 9.0 MiB made early, fetch 12.0 MiB"));
  timing.early_bytes = 0;
  timing.patches = 5;
  EXPECT_TRUE(build_text(timing).starts_with("version 41 + 5 spans + 3 deltas: fetch"));
  timing.is_streamed = true;
  timing.attempts = 1;
  EXPECT_EQ(shown_text(timing),
            "32ms after its manifest was seen (flip 31ms); all of it was here 480ms later");
  const HandOverTiming handed_over{.commit = milliseconds(400), .adopt = milliseconds(112)};
  EXPECT_EQ(shown_text(handed_over), "512ms (commit 400ms, adopt 112ms)");
}

/// Nothing that is likely makes a line of the tables wider than 100 columns.
TEST(TimingText, TablesFitATerminal) {
  const auto time = milliseconds(99'940);
  TimingRecord record{.version = 1'234'567};
  record.brought = VersionTiming{.version = record.version,
                                 .seen_ns = 1'790'000'000'000'000'000,
                                 .is_streamed = true,
                                 .snapshot = record.version,
                                 .deltas = 12,
                                 .unseen = time,
                                 .wait = time,
                                 .plan = time,
                                 .room = time,
                                 .build = time,
                                 .record = time,
                                 .flip = time,
                                 .sync = time,
                                 .work = {.fetch = time,
                                          .fetched_bytes = (1000ull << 30) - 1,
                                          .stalled = time,
                                          .decode = time,
                                          .write = time}};
  record.handed_over = HandOverTiming{.version = record.version,
                                      .name = "step-1234567",
                                      .seal = time,
                                      .wait = time,
                                      .code = time,
                                      .upload = time,
                                      .commit = time,
                                      .adopt = time,
                                      .bytes = (1000ull << 30) - 1,
                                      .early_bytes = (1000ull << 30) - 1,
                                      .uploaded_bytes = (1000ull << 30) - 1};
  std::istringstream lines(timing_tables({record, record}));
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); count++) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_EQ(count, 11u);
}

TEST(TimingText, TheNewestComesFirstAndUnknownTimesAreDashes) {
  TimingRecord first{.version = 1}, second{.version = 2};
  first.brought = VersionTiming{.version = 1, .snapshot = 1};
  second.brought = VersionTiming{.version = 2, .base = 1, .deltas = 1};
  const std::string text = timing_tables({first, second});
  EXPECT_LT(text.find("version 1 + 1 delta"), text.find("snapshot 1:"));
  EXPECT_NE(text.find("       -"), std::string::npos);
  EXPECT_EQ(text.find("HANDED OVER"), std::string::npos);
  EXPECT_EQ(timing_tables({}), "");
}

}  // namespace
}  // namespace weightfs::fs
