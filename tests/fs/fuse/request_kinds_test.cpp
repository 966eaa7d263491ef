#include "fs/fuse/request_kinds.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <utility>

namespace weightfs::fs {
namespace {

constexpr auto kLast = static_cast<std::size_t>(RequestKind::move);

std::vector<RequestKind> all_kinds() {
  std::vector<RequestKind> kinds;
  for (std::size_t i = 0; i <= kLast; i++) kinds.push_back(static_cast<RequestKind>(i));
  return kinds;
}

TEST(RequestKinds, EachHasAShareOfItsOwnInThePoolOfItsClass) {
  std::set<std::pair<WaitClass, std::size_t>> seen;
  for (const RequestKind kind : all_kinds()) {
    const RequestPolicy& policy = policy_of(kind);
    EXPECT_EQ(policy.kind, kind);
    EXPECT_TRUE(seen.emplace(policy.waits_for, share_of(kind)).second);
    EXPECT_EQ(shares_of(policy.waits_for).at(share_of(kind)), policy.workers);
    EXPECT_GT(policy.workers, 0U);
  }
  std::size_t shares = 0;
  for (std::size_t i = 0; i < kWaitClassCount; i++) {
    shares += shares_of(static_cast<WaitClass>(i)).size();
  }
  EXPECT_EQ(shares, kLast + 1);
}

TEST(RequestKinds, OnlyWhatChangesSomethingIsFinishedBehindItsDeadline) {
  const std::set<RequestKind> changing{RequestKind::change, RequestKind::make, RequestKind::move};
  for (const RequestKind kind : all_kinds()) {
    EXPECT_EQ(policy_of(kind).on_give_up == OnGiveUp::finish, changing.contains(kind));
  }
}

// SEMANTICS: a reader whose bytes do not arrive within --read-timeout gets EIO.
TEST(RequestKinds, WhatIsLateAfterTheReadTimeoutIsAnIoErrorOfAReader) {
  for (const RequestKind kind : all_kinds()) {
    const RequestPolicy& policy = policy_of(kind);
    if (policy.limit.count() != 0) continue;
    EXPECT_EQ(policy.late, EIO);
    EXPECT_TRUE(policy.is_reader);
  }
}

}  // namespace
}  // namespace weightfs::fs
