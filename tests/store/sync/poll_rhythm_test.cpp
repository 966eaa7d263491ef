#include "store/sync/poll_rhythm.hpp"

#include <gtest/gtest.h>

#include <random>

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

TEST_F(RhythmTest, IsNeverSparserThanSteadyPolls) {
  learn(seconds(16));
  EXPECT_LE(follow(std::chrono::hours(1)), kSteady);  // the trainer stood still
  EXPECT_LE(follow(milliseconds(100)), kSteady);
  EXPECT_EQ(rhythm_.pause(now_, milliseconds(2), {}), milliseconds(2));
}

TEST_F(RhythmTest, OnePauseOfTheTrainerDoesNotLoseTheBeat) {
  learn(seconds(16));
  follow(seconds(500));
  EXPECT_LE(follow(seconds(16)), 3 * PollRhythm::kDensest);
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

}  // namespace
}  // namespace weightfs::test
