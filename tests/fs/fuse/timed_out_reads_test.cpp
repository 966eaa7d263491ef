#include "fs/fuse/timed_out_reads.hpp"

#include <gtest/gtest.h>

#include "tests/support/no_memory.hpp"
#include "tests/support/sanitized.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;

TEST(TimedOutReads, CoverWhatIsInThemForAMoment) {
  TimedOutReads late;
  const auto now = Clock::now();
  EXPECT_FALSE(late.covers({1, 0, 10}, now));
  late.add({1, 100, 200}, now);
  for (const ReadRange inside : {ReadRange{1, 100, 200}, {1, 100, 101}, {1, 199, 200}}) {
    EXPECT_TRUE(late.covers(inside, now + milliseconds(999)));
  }
  for (const ReadRange other : {ReadRange{2, 100, 200}, {1, 99, 200}, {1, 100, 201}, {1, 0, 10}}) {
    EXPECT_FALSE(late.covers(other, now));
  }
  EXPECT_FALSE(late.covers({1, 100, 200}, now + TimedOutReads::kMoment));
}

// Its caller cannot fail: it answers a READ.
TEST(TimedOutReads, WithoutMemoryAReadIsNotNoted) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's operator new";
  TimedOutReads late;
  const auto now = Clock::now();
  const test::NoMemory none;
  for (std::uint64_t i = 0; i < 1000; i++) late.add({1, i, i + 1}, now);
}

TEST(TimedOutReads, TheOldestAreForgottenWhenThereAreTooMany) {
  TimedOutReads late;
  const auto now = Clock::now();
  for (std::uint64_t i = 0; i < TimedOutReads::kReadsMax + 5; i++) late.add({1, i, i + 1}, now);
  EXPECT_FALSE(late.covers({1, 5, 6}, now));
  EXPECT_TRUE(late.covers({1, TimedOutReads::kReadsMax + 4, TimedOutReads::kReadsMax + 5}, now));
}

}  // namespace
}  // namespace weightfs::fs
