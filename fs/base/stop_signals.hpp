// Stop signals: turns SIGINT, SIGTERM and SIGHUP into a stop token.  SIGINT or SIGHUP that was
// ignored when the program began stays so: `nohup weightfs sync URL DIR &` outlives its terminal.
//
// While an object lives, they are blocked in the thread that made it and in every thread
// started since; a thread of its own waits for them.
//
// Threads: made before all other threads and destroyed after them, by one thread.
#pragma once

#include <chrono>
#include <csignal>
#include <stop_token>
#include <thread>

namespace weightfs::fs {

/// SIGTERM, and SIGINT and SIGHUP unless they are ignored.
sigset_t stop_signal_set() noexcept;

class StopSignals {
 public:
  /// `grace`: how long the caller may take to end after a stop before the process exits; 0: no
  /// limit.
  explicit StopSignals(std::chrono::seconds grace = std::chrono::seconds(0));
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }

  /// As if a signal had arrived: the grace period begins.
  void request_stop() noexcept;

 private:
  void watch(std::chrono::seconds grace) noexcept;
  void wake() noexcept;

  std::stop_source stop_;
  std::stop_source ended_;
  sigset_t old_mask_{};
  std::thread watcher_;
};

}  // namespace weightfs::fs
