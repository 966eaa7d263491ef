#include "kernels/block/free_list.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/support/no_memory.hpp"
#include "tests/support/sanitized.hpp"

namespace weightfs::kernels {
namespace {

TEST(FreeList, WhatIsGivenBackIsLentAgain) {
  FreeList<int> list;
  int made = 0;
  const auto make = [&] { return std::make_unique<int>(++made); };
  { EXPECT_EQ(*list.borrow(make), 1); }
  const auto first = list.borrow(make);
  EXPECT_EQ(*first, 1);
  EXPECT_EQ(*list.borrow(make), 2);
}

// It is given back by a destructor, which must not throw.
TEST(FreeList, WhatThereIsNoMemoryToKeepIsMadeAgain) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's operator new";
  FreeList<int> list;
  int made = 0;
  const auto make = [&] { return std::make_unique<int>(++made); };
  {
    std::optional lease(list.borrow(make));
    const test::NoMemory none;
    lease.reset();
  }
  EXPECT_EQ(*list.borrow(make), 2);
}

}  // namespace
}  // namespace weightfs::kernels
