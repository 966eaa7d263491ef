// WokenThread: a thread that works whenever it was woken.  Wakes that come while it works count
// once: it works once more.
//
// Work that fails is done again when the thread is woken again, or after Options::retry_pause.  The
// log has each failure once, until the work has succeeded.
//
// Threads: all calls may run in parallel; start() and stop() by one thread at a time.  The work
// runs without locks.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs {

class WokenThread {
 public:
  /// For the result of the work: it waits until it is woken.
  static constexpr Clock::duration kUntilWoken = Clock::duration::max();

  /// `context`: is stopped by stop().  `is_woken`: false if only the pause has ended.
  /// Returns: the longest pause before it works again.
  using Work = std::function<Clock::duration(const Context& context, bool is_woken)>;

  struct Options {
    std::string failed;                  // a warning, for fmt: {} is what the work threw
    void (*begin)() noexcept = nullptr;  // called first in the thread
    Clock::duration retry_pause = kUntilWoken;
  };

  WokenThread(Options options, Work work);
  ~WokenThread();  // stops
  WokenThread(const WokenThread&) = delete;
  WokenThread& operator=(const WokenThread&) = delete;

  void start();
  /// Waits for the end of the work, whose Context is stopped.
  void stop();

  /// Quick.
  void wake();

  /// What the work threw the last time; "": it succeeded.
  [[nodiscard]] std::string error() const;

 private:
  void run(const std::stop_token& stop);
  [[nodiscard]] bool wait(const std::stop_token& stop, Clock::duration pause);
  [[nodiscard]] Clock::duration work(const Context& context, bool is_woken);
  void note_failure(const std::exception& error) noexcept;
  void note(std::string error);

  const Options options_;
  const Work work_;
  mutable RankedMutex mutex_{LockRank::leaf, "WokenThread::mutex_"};  // guards the next three
  std::condition_variable_any changed_;
  bool is_woken_ = false;
  std::string error_;
  std::jthread thread_;
};

}  // namespace weightfs
