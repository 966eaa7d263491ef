// Stop signals: SIGINT, SIGTERM and SIGHUP become a stop token.
//
// While one of these lives the three are blocked in the caller's thread, and in every thread that
// is made meanwhile, and a thread of its own waits for them.
//
// Threads: made and destroyed by one thread, before and after all others.
#pragma once

#include <chrono>
#include <csignal>
#include <stop_token>
#include <thread>

namespace weightfs::fs {

/// SIGINT, SIGTERM, SIGHUP.
sigset_t stop_signal_set() noexcept;

class StopSignals {
 public:
  /// `grace`: how long the caller may take to end after a stop; then the process exits.  0: for
  /// ever.
  explicit StopSignals(std::chrono::seconds grace = std::chrono::seconds(0));
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }

  /// As if a signal had come: the grace begins.
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
