#include "store/threads/woken_thread.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "tests/support/eventually.hpp"

namespace weightfs {
namespace {

using test::eventually;

constexpr Clock::duration kUntilWoken = WokenThread::kUntilWoken;

TEST(WokenThread, WorksOnceForWakesThatComeWhileItWorks) {
  std::atomic<unsigned> begun = 0;
  std::atomic<bool> may_end = false;
  WokenThread thread({"{}"}, [&](const Context&, bool is_woken) {
    EXPECT_TRUE(is_woken);
    begun++;
    may_end.wait(false);
    return kUntilWoken;
  });
  thread.wake();
  EXPECT_EQ(begun, 0u) << "it has not been started";
  thread.start();
  ASSERT_TRUE(eventually([&] { return begun == 1; }));
  for (int i = 0; i < 3; i++) thread.wake();
  may_end = true;
  may_end.notify_all();
  ASSERT_TRUE(eventually([&] { return begun == 2; }));
  thread.stop();
  EXPECT_EQ(begun, 2u);
}

TEST(WokenThread, StopEndsItsWork) {
  std::atomic<bool> has_begun = false;
  WokenThread thread({"{}"}, [&](const Context& context, bool) {
    has_begun = true;
    context.pause(std::chrono::minutes(2), "waiting for a stop");
    return kUntilWoken;
  });
  thread.start();
  thread.wake();
  ASSERT_TRUE(eventually([&] { return has_begun.load(); }));
  thread.stop();
  EXPECT_EQ(thread.error(), "") << "being stopped is no failure";
}

TEST(WokenThread, WorksAgainAfterThePauseThatTheWorkAsksFor) {
  std::atomic<unsigned> woken = 0, others = 0;
  WokenThread thread({"{}"}, [&](const Context&, bool is_woken) -> Clock::duration {
    (is_woken ? woken : others)++;
    return others < 2 ? std::chrono::milliseconds(1) : kUntilWoken;
  });
  thread.start();
  thread.wake();
  EXPECT_TRUE(eventually([&] { return others == 2; }));
  EXPECT_EQ(woken, 1u);
}

TEST(WokenThread, WorkThatFailedIsDoneAgainAfterAPause) {
  std::atomic<unsigned> done = 0;
  WokenThread thread({"{}", nullptr, std::chrono::milliseconds(1)}, [&](const Context&, bool) {
    if (++done < 3) throw std::runtime_error("no room");
    return kUntilWoken;
  });
  thread.start();
  thread.wake();
  EXPECT_TRUE(eventually([&] { return done == 3; }));
  EXPECT_TRUE(eventually([&] { return thread.error().empty(); }));
}

TEST(WokenThread, AFailureIsKnownUntilTheWorkSucceeds) {
  std::atomic<bool> fails = true;
  std::atomic<unsigned> done = 0;
  WokenThread thread({"{}"}, [&](const Context&, bool) {
    done++;
    if (fails) throw std::runtime_error("no room");
    return kUntilWoken;
  });
  thread.start();
  thread.wake();
  EXPECT_TRUE(eventually([&] { return thread.error() == "no room"; }));
  fails = false;
  thread.wake();
  EXPECT_TRUE(eventually([&] { return thread.error().empty(); }));
  EXPECT_EQ(done, 2u);
}

}  // namespace
}  // namespace weightfs
