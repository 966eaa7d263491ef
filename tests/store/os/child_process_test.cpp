// run_child_process: what of its output is kept, and who decides when it ends.
#include "store/os/child_process.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

ChildPlan shell(const std::string& script) {
  ChildPlan plan;
  plan.argv = {"/bin/sh", "-c", script};
  plan.ends_group = true;
  return plan;
}

TEST(ChildProcess, KeepsTheLastBytesOfEachOutput) {
  ChildPlan plan = shell("printf 'abcdefgh'; printf '12345678' >&2");
  plan.keeps_apart = true;
  plan.output_bytes_max = 5;
  const ChildEnd end = run_child_process(plan, {});
  EXPECT_TRUE(end.ok());
  EXPECT_EQ(end.output, "defgh");
  EXPECT_EQ(end.errors, "45678");
  EXPECT_TRUE(end.is_cut);
  plan.output_bytes_max = 8;
  EXPECT_EQ(run_child_process(plan, {}).output, "abcdefgh");
  EXPECT_FALSE(run_child_process(plan, {}).is_cut);
}

TEST(ChildProcess, KeepsTheLastBytesOfMuch) {
  ChildPlan plan = shell("head -c 3000000 /dev/zero; printf end");
  plan.output_bytes_max = 1000;
  const ChildEnd end = run_child_process(plan, {});
  EXPECT_EQ(end.output, std::string(997, '\0') + "end");
  EXPECT_TRUE(end.is_cut);
}

// It was read from for as long as it wrote faster than its output was moved.
TEST(ChildProcess, ADeadlineHoldsForWhoNeverStopsWriting) {
  ChildPlan plan = shell("for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero bs=64k & done; wait");
  plan.output_bytes_max = 16u << 20;
  const Context context = Context{}.within(milliseconds(500));
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(test::code_of([&] { static_cast<void>(run_child_process(plan, context)); }),
            ErrorCode::timed_out);
  EXPECT_LT(Clock::now() - begin, seconds(30));
}

TEST(ChildProcess, WhoIsLeftBehindAndWritesHoldsUpNothing) {
  const ChildEnd end =
      run_child_process(shell("dd if=/dev/zero bs=64k & exit 3"), Context{}.within(seconds(60)));
  EXPECT_EQ(end.exit_code, 3);
}

}  // namespace
}  // namespace weightfs
