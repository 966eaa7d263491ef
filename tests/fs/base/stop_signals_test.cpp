#include "fs/base/stop_signals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "tests/support/eventually.hpp"

namespace weightfs::fs {
namespace {

/// Sets what a signal does, for a test.
class Disposition {
 public:
  Disposition(int signal, void (*handler)(int)) : signal_(signal) {
    old_ = std::signal(signal, handler);
  }
  ~Disposition() { std::signal(signal_, old_); }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;

 private:
  const int signal_;
  void (*old_)(int);
};

bool stops(const StopSignals& signals) {
  return test::eventually([&] { return signals.token().stop_requested(); });
}

/// The kernel drops an ignored signal at once, but only if it is not blocked.
bool is_blocked(int signal) {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  return sigismember(&now, signal) == 1;
}

/// In a process that has no other threads: a signal goes to any one that does not block it.
void expect_in_child(const std::function<bool()>& holds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // until the test ends
  EXPECT_EXIT(::_exit(holds() ? 0 : 1), testing::ExitedWithCode(0), "");
}

TEST(StopSignals, EachStops) {
  const Disposition hangup(SIGHUP, SIG_DFL), interrupt(SIGINT, SIG_DFL);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    expect_in_child([&] {
      const StopSignals signals;
      ::kill(::getpid(), signal);
      return stops(signals);
    });
  }
}

// nohup ignores SIGHUP for a program, and a shell SIGINT for what a script runs in the background.
TEST(StopSignals, WhatIsIgnoredStaysSo) {
  const Disposition hangup(SIGHUP, SIG_IGN), interrupt(SIGINT, SIG_IGN);
  const sigset_t set = stop_signal_set();
  EXPECT_EQ(sigismember(&set, SIGHUP), 0);
  EXPECT_EQ(sigismember(&set, SIGINT), 0);
  expect_in_child([] {
    const StopSignals signals;
    const bool are_dropped = !is_blocked(SIGHUP) && !is_blocked(SIGINT) && is_blocked(SIGTERM);
    ::kill(::getpid(), SIGTERM);
    return are_dropped && stops(signals);
  });
}

}  // namespace
}  // namespace weightfs::fs
