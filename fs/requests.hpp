// Requests: parks FUSE requests whose answer may take time, so that no handler of the session ever
// blocks.  A worker answers; a watcher answers for it when the deadline passes or the caller is
// interrupted, so that no caller is ever stuck in state D.
//
// Each request is answered exactly once, by whoever comes first.  Knows no libfuse: a request is an
// interface, and tests bring their own.
//
// Threads: all calls may run in parallel; answers come from the pool's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "store/context.hpp"

namespace weightfs::fs {

/// One request of the kernel, to be answered exactly once: by error(), or by what the work sends.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void error(int code) noexcept = 0;
};

class RequestPool {
 public:
  explicit RequestPool(unsigned threads);
  ~RequestPool();  // answers what is parked with ENOTCONN, and joins
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  /// Identifies a request for interrupt(); never reused.
  using Ticket = std::uint64_t;

  /// Announces a request.  An interrupt may arrive from now on; it takes effect in park().  Every
  /// announced request must be parked.
  Ticket announce();

  /// What a worker does: returns the function that sends the answer, which then runs at once on the
  /// same thread (so it may refer to thread_local memory) and must not throw.  The work gets a
  /// context whose stop token fires when the request was answered by the watcher, and whose
  /// deadline is the request's.  What it throws becomes an errno.
  using Work = std::function<std::function<void()>(const Context&)>;

  /// Queues `work`.  If the deadline passes first the caller gets ETIMEDOUT, if it is interrupted
  /// EINTR, if the pool ends ENOTCONN; a late answer of the worker is then thrown away.
  /// From here on the request belongs to the pool: it may be answered, and gone, before park()
  /// returns.
  void park(Ticket ticket, std::unique_ptr<Reply> reply, Clock::time_point deadline,
            Work work) noexcept;

  /// The caller does not wait any longer.  Never answers itself, so it may be called under locks
  /// that an answer would take.  Unknown tickets are ignored.
  void interrupt(Ticket ticket) noexcept;

  /// Requests parked and not yet answered.
  [[nodiscard]] std::size_t parked_count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
