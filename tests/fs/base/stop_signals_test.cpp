#include "fs/base/stop_signals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

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

TEST(StopSignals, EachStops) {
  const Disposition hangup(SIGHUP, SIG_DFL), interrupt(SIGINT, SIG_DFL);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const StopSignals signals;
    ::kill(::getpid(), signal);
    EXPECT_TRUE(stops(signals)) << signal;
  }
}

// nohup ignores SIGHUP for a program, and a shell SIGINT for what a script runs in the background.
TEST(StopSignals, WhatIsIgnoredStaysSo) {
  const Disposition hangup(SIGHUP, SIG_IGN), interrupt(SIGINT, SIG_IGN);
  const sigset_t set = stop_signal_set();
  EXPECT_EQ(sigismember(&set, SIGHUP), 0);
  EXPECT_EQ(sigismember(&set, SIGINT), 0);
  const StopSignals signals;
  ::kill(::getpid(), SIGHUP);
  ::kill(::getpid(), SIGINT);
  EXPECT_FALSE(signals.token().stop_requested());
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(stops(signals));
}

}  // namespace
}  // namespace weightfs::fs
