#include "store/timing/version_timing.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/timing/build_meter.hpp"
#include "store/timing/phase_watch.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using test::code_of;

TimingRecord full_timing() {
  TimingRecord record{.version = 42};
  record.brought = VersionTiming{.version = 42,
                                 .seen_ns = 1'790'000'000'123'456'789,
                                 .published = 1'790'000'000,
                                 .attempts = 2,
                                 .is_streamed = true,
                                 .base = 41,
                                 .snapshot = 40,
                                 .deltas = 3,
                                 .skips = 17,
                                 .patches = 4,
                                 .bytes = 512,
                                 .early_bytes = 256,
                                 .unseen = milliseconds(900),
                                 .wait = microseconds(1),
                                 .plan = microseconds(2),
                                 .room = microseconds(3),
                                 .build = microseconds(1'234'567),
                                 .record = microseconds(5),
                                 .flip = microseconds(6),
                                 .sync = microseconds(7),
                                 .work = {.fetch = microseconds(8),
                                          .fetched_bytes = 9,
                                          .requests = 10,
                                          .seeded_bytes = 17,
                                          .stalled = microseconds(11),
                                          .decode = microseconds(12),
                                          .patch = microseconds(15),
                                          .patched_bytes = 16,
                                          .write = microseconds(13),
                                          .written_bytes = 14}};
  record.handed_over = HandOverTiming{.version = 42,
                                      .begun_ns = 1'790'000'000'000'000'001,
                                      .name = "step-42",
                                      .attempts = 3,
                                      .seal = microseconds(1),
                                      .wait = microseconds(2),
                                      .code = microseconds(3),
                                      .upload = microseconds(4),
                                      .commit = microseconds(5),
                                      .adopt = microseconds(6),
                                      .bytes = 7,
                                      .early_bytes = 8,
                                      .uploaded_bytes = 9};
  return record;
}

TEST(VersionTimingText, ReadsBackWhatItWrote) {
  EXPECT_EQ(parse_timing(to_json_text(full_timing())), full_timing());
  TimingRecord half{.version = 1};
  half.brought = VersionTiming{.version = 1, .base = 0, .snapshot = 1};
  EXPECT_EQ(parse_timing(to_json_text(half)), half);
}

TEST(VersionTimingText, TellsMillisecondsAndTheirSum) {
  const Json json = parse_json(to_json_text(full_timing()), "timing");
  EXPECT_EQ(json["brought"]["build_ms"], 1234.567);
  EXPECT_EQ(json["brought"]["total_ms"], 0.017);  // without build: it was streamed
  EXPECT_EQ(json["handed_over"]["total_ms"], 0.021);
}

/// What was read back is told as it was told before.
TEST(VersionTimingText, TellsTheSumOfWhatItTells) {
  TimingRecord record{.version = 1};
  record.brought = VersionTiming{.version = 1,
                                 .base = 1,
                                 .wait = nanoseconds(400),
                                 .plan = nanoseconds(400),
                                 .build = nanoseconds(400),
                                 .flip = nanoseconds(1600)};
  const std::string text = to_json_text(record);
  EXPECT_EQ(parse_json(text, "timing")["brought"]["total_ms"], 0.002);
  EXPECT_EQ(to_json_text(parse_timing(text)), text);
}

TEST(VersionTimingText, IgnoresFieldsOfLaterReleases) {
  Json json = parse_json(to_json_text(full_timing()), "timing");
  json["brought"]["teleported_ms"] = "soon";
  json["brought"].erase("wait_ms");
  TimingRecord expected = full_timing();
  expected.brought->wait = nanoseconds(0);
  EXPECT_EQ(parse_timing(json.dump()), expected);
}

TEST(VersionTimingText, RefusesWhatIsMalformed) {
  const auto with = [](const char* field, const Json& value) {
    Json json = parse_json(to_json_text(full_timing()), "timing");
    json["brought"][field] = value;
    return json.dump();
  };
  for (const std::string& text :
       {with("build_ms", "fast"), with("build_ms", -1), with("build_ms", 1e300),
        with("attempts", 0.5), with("streamed", 1), std::string("{}"), std::string("["),
        std::string(R"({"version":1,"brought":[],"handed_over":null})")}) {
    EXPECT_EQ(code_of([&] { parse_timing(text); }), ErrorCode::corrupt) << text;
  }
}

TEST(BuildMeter, AddsUpWhatThreadsDo) {
  BuildMeter meter;
  const Clock::time_point begin = Clock::now() - milliseconds(50);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&] {
        meter.add_fetch(begin, 100);
        meter.add_made(milliseconds(30));
        meter.add_stalled(milliseconds(10));
        meter.add_written(milliseconds(5), 1000);
        meter.add_seeded(10);
      });
    }
  }
  const BuildTiming timing = meter.read();
  EXPECT_EQ(timing.fetched_bytes, 400U);
  EXPECT_EQ(timing.requests, 4U);
  EXPECT_EQ(timing.seeded_bytes, 40U);
  EXPECT_GE(timing.fetch, milliseconds(50));
  EXPECT_EQ(timing.stalled, milliseconds(40));
  EXPECT_EQ(timing.decode, milliseconds(80));
  EXPECT_EQ(timing.write, milliseconds(20));
  EXPECT_EQ(timing.written_bytes, 4000U);
}

TEST(BuildMeter, IsZeroWithoutWork) { EXPECT_EQ(BuildMeter().read(), BuildTiming()); }

TEST(VersionWatch, LeavesNoGapBetweenPhases) {
  const Clock::time_point begin = Clock::now() - milliseconds(20);
  VersionWatch watch(7, begin);
  watch.lap(&VersionTiming::wait);
  EXPECT_GE(watch.timing.wait, milliseconds(20));
  watch.lap(&VersionTiming::plan);
  watch.lap(&VersionTiming::build);
  watch.lap(&VersionTiming::plan);
  EXPECT_EQ(watch.timing.total(), watch.lap_began() - begin);
  EXPECT_EQ(watch.timing.version, 7U);
}

// A hand-over of a host whose clock stood at 1970 once made a record that nobody could read.
TEST(HandOverWatch, AClockThatStoodWrongMakesATimeThatCanBeRead) {
  for (const std::int64_t time : {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
    HandOverWatch watch = HandOverWatch::since("step-1", time);
    watch.lap(&HandOverTiming::wait);
    EXPECT_LE(watch.timing.wait, std::chrono::days(31));
    TimingRecord record{.version = 1};
    record.handed_over = watch.timing;
    EXPECT_NO_THROW(parse_timing(to_json_text(record))) << time;
  }
  HandOverWatch watch = HandOverWatch::since("step-1", seconds_now() - 3 * 24 * 3'600);
  watch.lap(&HandOverTiming::wait);
  EXPECT_GE(watch.timing.wait, std::chrono::days(3)) << "a bucket may be away for a weekend";
}

}  // namespace
}  // namespace weightfs
