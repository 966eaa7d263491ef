#include "store/os/memory_budget.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"

namespace weightfs {
namespace {

using test::code_of;

TEST(MemoryBudget, IsTakenUntilItIsUsedUp) {
  MemoryBudget budget(100, "the limit of cgroup /a, 400 B");
  budget.take(60, "a");
  EXPECT_NO_THROW(budget.check(40, "b"));
  EXPECT_NO_THROW(budget.check(40, "b")) << "nothing was taken";
  std::string message;
  EXPECT_EQ(code_of([&] { budget.take(41, "packs/2/x"); }, &message), ErrorCode::unsupported);
  for (const char* part : {"packs/2/x: ", "41 B", "100 B here, 60 B", "cgroup /a, 400 B", "give"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(code_of([&] { budget.check(UINT64_MAX, "b"); }), ErrorCode::unsupported);
  budget.take(40, "c");
  EXPECT_EQ(code_of([&] { budget.take(1, "d"); }), ErrorCode::unsupported);
}

TEST(MemoryBudget, OfThisHostLetsOrdinaryVersionsIn) {
  MemoryBudget budget;
  EXPECT_NO_THROW(budget.take(16u << 20, "a layout"));
}

TEST(MemoryBudget, IsSharedByThreads) {
  MemoryBudget budget(1000, "x");
  std::atomic<int> taken{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&] {
        for (int k = 0; k < 1000; k++) {
          try {
            budget.take(1, "x");
            taken++;
          } catch (const Error&) {
          }
        }
      });
    }
  }
  EXPECT_EQ(taken, 1000);
}

}  // namespace
}  // namespace weightfs
