#include "fs/fuse/server.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "store/base/context.hpp"

namespace weightfs::fs {
namespace {

/// Says what its caller got.
class NotedReply final : public Reply {
 public:
  explicit NotedReply(std::atomic<int>& code) : code_(code) {}
  void error(int code) noexcept override { code_ = code; }

 private:
  std::atomic<int>& code_;
};

// What a READ does whose range is not all here when it is woken.  There was no pool any more.
TEST(ServerTest, WhatIsHeldAnewWhileThePoolsEndIsAnswered) {
  const auto catalog = std::make_shared<const Catalog>();
  const Tree tree([&] { return catalog; }, Ownership{});
  Server server(tree, FuseSessionOptions{});
  const auto deadline = Clock::now() + std::chrono::hours(1);
  const std::size_t share = share_of(RequestKind::streamed);
  const auto pool = [&]() -> RequestPool& { return server.pool(WaitClass::local); };
  std::atomic<int> first = 0, again = 0;
  std::atomic<bool> has_begun = false;
  const auto hold_again = [&](const Context& context) {
    has_begun = true;
    has_begun.notify_all();
    while (!context.stop.stop_requested()) std::this_thread::yield();
    return [&] {
      const auto ticket = pool().announce(share);
      pool().hold(ticket, std::make_unique<NotedReply>(again), deadline, {});
    };
  };
  pool().park(pool().announce(share), std::make_unique<NotedReply>(first), deadline, hold_again,
              OnGiveUp::finish);
  has_begun.wait(false);
  server.end_pools();
  EXPECT_EQ(first, 0);
  EXPECT_EQ(again, ENOTCONN);
}

}  // namespace
}  // namespace weightfs::fs
