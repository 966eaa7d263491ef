#include "store/sync/poll_rhythm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "store/base/retry_delay.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kSteady{1000};

// A host that polls a run; a poll takes no time.
class RhythmTest : public testing::Test {
 protected:
  // Polls until the next version, which comes after `interval`, was seen.
  // Returns: how late that was.
  milliseconds follow(milliseconds interval) {
    const Clock::time_point published = last_published_ + interval;
    for (polls_ = 0; now_ < published; polls_++) now_ += rhythm_.pause(now_, kSteady, {});
    last_published_ = published;
    rhythm_.saw_version(now_);
    return std::chrono::duration_cast<milliseconds>(now_ - published);
  }

  void learn(milliseconds interval) {
    for (int i = 0; i < 8; i++) follow(interval);
  }

  PollRhythm rhythm_;
  Clock::time_point now_ = Clock::time_point{} + seconds(1000);
  Clock::time_point last_published_ = now_;
  int polls_ = 0;  // for the last version
};

TEST_F(RhythmTest, PollsSteadilyUntilThereIsARhythm) {
  EXPECT_EQ(rhythm_.pause(now_, kSteady, {}), kSteady);
  rhythm_.saw_version(now_);
  EXPECT_EQ(rhythm_.pause(now_, kSteady, {}), kSteady);
  rhythm_.saw_version(now_ += seconds(16));
  EXPECT_EQ(rhythm_.pause(now_ + seconds(16), kSteady, {}), kSteady);
}

TEST_F(RhythmTest, SeesTheVersionsOfASteadyRunWithinADensePause) {
  for (const seconds interval : {seconds(1), seconds(16), seconds(600)}) {
    learn(interval);
    for (int i = 0; i < 20; i++) EXPECT_LE(follow(interval), 2 * PollRhythm::kDensest);
  }
}

TEST_F(RhythmTest, AVersionThatComesOffTheBeatIsSeenWithinAnEighthOfTheError) {
  std::minstd_rand random(seed());
  std::uniform_int_distribution<int> error_ms(-3000, 3000);
  for (int i = 0; i < 500; i++) {
    learn(seconds(16));
    const int error = error_ms(random);
    const milliseconds bound = milliseconds(std::abs(error) / 7) + 3 * PollRhythm::kDensest;
    EXPECT_LE(follow(seconds(16) + milliseconds(error)), bound) << error << " ms";
  }
}

TEST_F(RhythmTest, AVersionThatItsSaveAnnouncesIsSeenWheneverItComes) {
  std::minstd_rand random(seed());
  std::uniform_int_distribution<int> length_s(2, 300), error_ms(-500, 500);
  learn(seconds(16));
  for (int i = 0; i < 500; i++) {
    const seconds length(length_s(random));
    const milliseconds error(i % 10 == 0 ? 0 : error_ms(random));
    rhythm_.expect(last_published_ + length);
    EXPECT_LE(follow(length + error), std::chrono::abs(error) / 7 + 3 * PollRhythm::kDensest)
        << length.count() << " s, " << error.count() << " ms";
    EXPECT_LE(polls_, length.count() + 200);
  }
}

TEST_F(RhythmTest, SoIsTheFirstOne) {
  rhythm_.expect(now_ + seconds(5));
  EXPECT_LE(follow(seconds(5)), 2 * PollRhythm::kDensest);
  EXPECT_EQ(rhythm_.pause(now_, kSteady, {}), kSteady) << "it has come";
}

TEST_F(RhythmTest, IsNeverSparserThanSteadyPolls) {
  learn(seconds(16));
  EXPECT_LE(follow(std::chrono::hours(1)), kSteady);  // the trainer stood still
  EXPECT_LE(follow(milliseconds(100)), kSteady);
  EXPECT_EQ(rhythm_.pause(now_, milliseconds(2), {}), milliseconds(2));
}

TEST_F(RhythmTest, OnePauseOfTheTrainerDoesNotLoseTheBeat) {
  learn(seconds(16));
  follow(seconds(500));
  // It was seen up to a steady pause late, and an eighth of that goes on.
  EXPECT_LE(follow(seconds(16)), kSteady / 7 + 3 * PollRhythm::kDensest);
}

TEST_F(RhythmTest, RequestsPerVersionAreBounded) {
  for (const seconds interval : {seconds(2), seconds(16), seconds(600), seconds(3600)}) {
    learn(interval);
    follow(interval);
    EXPECT_LE(polls_, interval.count() + 100) << interval.count() << " s";
    follow(2 * interval);
    EXPECT_LE(polls_, 2 * interval.count() + 100) << interval.count() << " s";
  }
}

TEST_F(RhythmTest, ASlowBucketIsNotAskedWithoutPause) {
  learn(seconds(16));
  const Clock::time_point due = now_ + seconds(16);
  EXPECT_GE(rhythm_.pause(due, kSteady, milliseconds(70)), milliseconds(70));
}

// ---- a thousand readers of one bucket ----

struct ReadersCost {
  double requests = 0;  // polls for each version and host
  double peak = 0;      // polls of all hosts in the busiest second, for each host
  milliseconds late{};  // how late the slowest host saw a version
};

/// Hosts as Sync polls, with its jitter, in virtual time: they start within a minute, learn the
/// rhythm, and follow `versions` more versions that come `interval` apart, give or take `off`.
ReadersCost follow_together(std::size_t hosts, seconds interval, milliseconds off) {
  constexpr int kLearned = 8, kVersions = 12;
  struct Reader {
    PollRhythm rhythm;
    std::minstd_rand random;
    int seen = 0;  // versions
  };
  std::minstd_rand random(seed());
  std::uniform_int_distribution<std::int64_t> error(-off.count(), off.count());
  const Clock::time_point begin = Clock::time_point{} + seconds(1000);
  std::vector<Clock::time_point> published;
  for (int i = 1; i <= kLearned + kVersions; i++) {
    published.push_back(begin + seconds(60) + i * interval + milliseconds(error(random)));
  }
  std::vector<Reader> readers(hosts);
  using Poll = std::pair<Clock::time_point, std::size_t>;
  std::priority_queue<Poll, std::vector<Poll>, std::greater<>> polls;
  std::uniform_int_distribution<int> start_ms(0, 60'000);
  for (std::size_t i = 0; i < hosts; i++) {
    readers[i].random.seed(static_cast<unsigned>(random()));
    polls.emplace(begin + milliseconds(start_ms(random)), i);
  }
  ReadersCost cost;
  std::map<std::int64_t, std::uint64_t> in_second;
  const Clock::time_point counted = published[kLearned - 1];
  while (!polls.empty()) {
    const auto [now, number] = polls.top();
    polls.pop();
    Reader& reader = readers[number];
    if (now > counted) {
      cost.requests++;
      in_second[std::chrono::floor<seconds>(now.time_since_epoch()).count()]++;
    }
    const auto count = std::upper_bound(published.begin(), published.end(), now);
    const int there = static_cast<int>(count - published.begin());
    if (there > reader.seen) {
      const auto late = std::chrono::ceil<milliseconds>(now - published[std::size_t(there) - 1]);
      if (now > counted) cost.late = std::max(cost.late, late);
      reader.seen = there;
      reader.rhythm.saw_version(now);
    }
    if (there == kLearned + kVersions) continue;
    polls.emplace(now + retry_delay(reader.rhythm.pause(now, kSteady, {}), 0, reader.random),
                  number);
  }
  for (const auto& [second, polled] : in_second) {
    cost.peak = std::max(cost.peak, static_cast<double>(polled) / static_cast<double>(hosts));
  }
  cost.requests /= static_cast<double>(hosts) * kVersions;
  return cost;
}

// What `--poll auto` costs a bucket: about one request a second and host, and 100 more around each
// version; a steady poll that is as quick would be 200 a second.
TEST(ReadersOfOneBucket, PollALittleMoreThanOnceASecondEach) {
  constexpr std::size_t kHosts = kSanitized ? 50 : 1000;
  std::printf("interval  off the beat  polls a version and host  busiest second  latest\n");
  for (const seconds interval : {seconds(4), seconds(16), seconds(120)}) {
    for (const milliseconds off : {milliseconds(0), milliseconds(500)}) {
      const ReadersCost cost = follow_together(kHosts, interval, off);
      std::printf("%7lds %10ldms %25.1f %15.1f %5ldms\n", static_cast<long>(interval.count()),
                  static_cast<long>(off.count()), cost.requests, cost.peak,
                  static_cast<long>(cost.late.count()));
      EXPECT_LE(cost.requests, 1.35 * static_cast<double>(interval.count()) + 100);
      EXPECT_LE(cost.peak, 70) << "they come closer together only for a moment";
      EXPECT_LE(cost.late, off / 3 + milliseconds(200)) << "not even the unluckiest of them";
    }
  }
}

}  // namespace
}  // namespace weightfs::test
