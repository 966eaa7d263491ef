// Requests: parks FUSE requests whose answer may take time, so that no handler of the session ever
// blocks.  A worker answers; a watcher answers for it when the deadline passes or the caller is
// interrupted, so that no caller is ever stuck in state D.
//
// Each request is answered exactly once, by whoever comes first.  Knows no libfuse: a request is an
// interface, and tests bring their own.
//
// Threads: park() and interrupt() from any thread; answers come from the pool's threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>

#include "store/context.hpp"

namespace weightfs::fs {

/// One request of the kernel, to be answered exactly once.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void error(int code) noexcept = 0;
};

class RequestPool {
 public:
  explicit RequestPool(unsigned threads);
  ~RequestPool();  // answers what is parked with ENOTCONN, and joins

  /// Identifies a parked request for interrupt(); never reused.
  using Ticket = std::uint64_t;

  /// What a worker does: returns the function that sends the answer.  It gets a context whose stop
  /// token fires when the request was answered by the watcher, and whose deadline is the request's.
  /// What it throws becomes an errno.
  using Work = std::function<std::function<void()>(const Context&)>;

  /// Queues `work`.  If the deadline passes first the caller gets ETIMEDOUT, if it is interrupted
  /// EINTR, if the pool ends ENOTCONN; a late answer of the worker is then thrown away.
  Ticket park(std::unique_ptr<Reply> reply, Clock::time_point deadline, Work work);

  /// The caller does not wait any longer.  Unknown tickets are ignored.
  void interrupt(Ticket ticket);

  [[nodiscard]] std::size_t parked_count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
