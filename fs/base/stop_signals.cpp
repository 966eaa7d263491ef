#include "fs/base/stop_signals.hpp"

#include <pthread.h>
#include <unistd.h>

#include "store/base/log.hpp"

namespace weightfs::fs {

namespace {

/// By who started this process: nohup, or a shell that runs it in the background of a script.
bool is_ignored(int signal) noexcept {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

// Linux queues a blocked signal even where it is ignored, and sigwait() would return it.
sigset_t stop_signal_set() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  for (const int signal : {SIGINT, SIGHUP}) {
    if (!is_ignored(signal)) sigaddset(&set, signal);
  }
  return set;
}

StopSignals::StopSignals(std::chrono::seconds grace) {
  const sigset_t set = stop_signal_set();
  pthread_sigmask(SIG_BLOCK, &set, &old_mask_);
  watcher_ = std::thread([this, grace] { watch(grace); });
}

StopSignals::~StopSignals() {
  ended_.request_stop();
  wake();
  watcher_.join();
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void StopSignals::request_stop() noexcept {
  stop_.request_stop();
  wake();
}

// Signals the watcher alone, to end its sigwait().
void StopSignals::wake() noexcept { pthread_kill(watcher_.native_handle(), SIGTERM); }

void StopSignals::watch(std::chrono::seconds grace) noexcept {
  const sigset_t set = stop_signal_set();
  int signal = 0;
  sigwait(&set, &signal);
  if (ended_.stop_requested()) return;
  stop_.request_stop();

  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (!ended_.stop_requested()) {
    if (grace.count() == 0) {
      sigwait(&set, &signal);
      continue;
    }
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      log_error("could not stop in time (a call to the bucket or the disk hangs); forcing the end");
      _exit(1);
    }
    const timespec limit{.tv_sec = left.count() / 1'000'000'000,
                         .tv_nsec = left.count() % 1'000'000'000};
    sigtimedwait(&set, nullptr, &limit);
  }
}

}  // namespace weightfs::fs
