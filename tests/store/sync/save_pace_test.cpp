#include "store/sync/save_pace.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/support.hpp"

namespace weightfs::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SavePaceTest : public testing::Test {
 protected:
  /// So much of 1000 bytes of a version is done.
  Clock::time_point note(std::uint64_t done, std::uint64_t version = 2) {
    return pace_.note({version, done, 1000}, now_);
  }
  Clock::time_point after(milliseconds time) { return now_ += time; }

  SavePace pace_;
  Clock::time_point now_ = Clock::time_point{} + seconds(1000);
};

TEST_F(SavePaceTest, ASteadySaveIsDueWhenItsLastByteIs) {
  const Clock::time_point end = now_ + seconds(10);
  EXPECT_EQ(note(0), now_) << "nobody knows yet";
  for (unsigned second = 1; second < 10; second++) {
    after(seconds(1));
    EXPECT_NEAR(std::chrono::duration<double>(note(100 * second) - end).count(), 0, 1e-6);
  }
}

TEST_F(SavePaceTest, OneThatIsCompleteIsDueAtOnce) {
  EXPECT_EQ(note(1000), now_);
  const Clock::time_point seen = now_;
  after(seconds(5));
  EXPECT_EQ(note(1000), seen);
}

TEST_F(SavePaceTest, WhatGoesOnNoMoreIsNotWaitedForAgain) {
  note(0);
  after(seconds(1));
  const Clock::time_point due = note(500);
  EXPECT_EQ(due, now_ + seconds(1));
  after(seconds(60));
  EXPECT_EQ(note(500), due);
}

TEST_F(SavePaceTest, ASaveThatBeginsAgainHasItsOwnPace) {
  note(0);
  after(seconds(1));
  note(900);
  after(seconds(1));
  EXPECT_EQ(note(100), now_) << "saved again";
  after(seconds(1));
  EXPECT_EQ(note(200), now_ + seconds(8));
  after(seconds(1));
  EXPECT_EQ(note(300, 3), now_) << "the next version";
}

TEST_F(SavePaceTest, AVeryLongOneOverflowsNoClock) {
  pace_.note({2, 0, ~std::uint64_t{0}}, now_);
  after(std::chrono::hours(1));
  EXPECT_LE(pace_.note({2, 1, ~std::uint64_t{0}}, now_), now_ + std::chrono::hours(24));
}

TEST(SaveProgressTest, CountsFilesThatAreCodedEarly) {
  Random rng = make_rng();
  const TempDir dir;
  const auto save = [&](const std::string& path, std::size_t elements) {
    write_text(dir / path,
               make_safetensors({{path, Dtype::bf16, {elements}, random_bf16(elements, rng)}}));
    return std::filesystem::file_size(dir / path);
  };
  const std::uint64_t a = save("a.safetensors", 600'000), b = save("b.safetensors", 700'000);
  save("small.safetensors", 100);
  const auto layout = Layout::from_checkpoint(scan_checkpoint(dir.path(), {}));
  EarlyRecord record;
  record.version = 7;
  EXPECT_EQ(progress_of(record, *layout).all_bytes, a + b);
  record.files = {{"a.safetensors", {}}, {"b.safetensors", {}, 4096}, {"new.safetensors", {}}};
  EXPECT_EQ(progress_of(record, *layout).version, 7u);
  EXPECT_EQ(progress_of(record, *layout).done_bytes, a + 4096);
  record.files[1].coded_bytes = ~std::uint64_t{0};
  EXPECT_EQ(progress_of(record, *layout).done_bytes, a + b);
}

}  // namespace
}  // namespace weightfs::test
