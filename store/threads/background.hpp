// Background: work on a thread of its own, beside what its maker does meanwhile.
//
//     Background   one piece of work; its maker may end it at any time
//     run_both     two pieces that are of use only together: the first failure ends both
//
// Threads: all belong to their maker; the work runs on another thread.
#pragma once

#include <exception>
#include <functional>
#include <stop_token>
#include <thread>

#include "store/base/context.hpp"

namespace weightfs {

/// A Context that its owner can stop too.
class OwnContext {
 public:
  /// Is stopped with `context`, and has its deadline.
  explicit OwnContext(const Context& context)
      : link_(context.stop, Stop{&source_}), context_{source_.get_token(), context.deadline} {}

  void stop() { source_.request_stop(); }

  /// For who stops it, at any time.
  [[nodiscard]] std::stop_source source() const { return source_; }

  /// Not stopped any more when this is gone.
  [[nodiscard]] const Context& get() const noexcept { return context_; }

 private:
  struct Stop {
    std::stop_source* source;
    void operator()() const { source->request_stop(); }
  };

  std::stop_source source_;
  std::stop_callback<Stop> link_;
  Context context_;
};

class Background {
 public:
  /// Begins.  The Context that `work` gets is stopped with `context`, and when this is destroyed.
  /// Throws std::system_error: the system refuses a thread.
  Background(const Context& context, std::function<void(const Context& context)> work);

  /// Stops the work and waits for its end; what it throws is dropped.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// Waits for the end of the work, and rethrows what it threw.  To be called once.
  void finish();

 private:
  OwnContext own_;
  std::exception_ptr error_;  // of the thread, until it has ended
  std::jthread thread_;
};

/// Calls `beside` on another thread and `work` on this one, and returns when both have ended.  The
/// first failure stops `own`, whose Context both are to heed, and is what is thrown.  Where the
/// system refuses a thread, `work` comes after `beside`: they must not wait for each other.
void run_both(OwnContext& own, const std::function<void()>& beside,
              const std::function<void()>& work);

}  // namespace weightfs
