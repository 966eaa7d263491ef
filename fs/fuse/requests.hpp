// Requests: parks FUSE requests whose answer may take time, so that no handler of the session ever
// blocks.  A worker answers; a watcher answers for it when the deadline passes or the caller is
// interrupted, so that no caller is ever stuck in state D.
//
// A pool has shares.  Each kind of request has one, and occupies no more workers than its share
// has.  The pool has as many workers as its shares together, so a kind that is stuck, on a bucket
// that hangs for instance, holds up no other.  A worker is started when a request is queued that
// may begin and no worker is idle; idle ones stay.
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
#include <vector>

#include "store/base/context.hpp"

namespace weightfs::fs {

/// One request of the kernel, to be answered exactly once: by error(), or by what the work sends.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void error(int code) noexcept = 0;

  /// After an interrupt: true if the caller is not to wait any longer.  Else it is asked again,
  /// some times a second.
  [[nodiscard]] virtual bool gives_up() const noexcept { return true; }
};

/// What becomes of work that has begun when its caller gives up: the deadline passes, it is
/// interrupted, or the pool ends.
enum class OnGiveUp {
  /// The caller is freed at once, and what the worker answers later is thrown away.  For work that
  /// changes nothing.
  abandon,
  /// The context is told to stop, and the worker's answer counts: what the caller is told must be
  /// what happened.  For work that changes something.  Before it has begun it is as `abandon`.
  finish,
};

class RequestPool {
 public:
  /// `shares`: how many workers requests of each share may occupy at once, each at least one.
  /// Starts the watcher and no worker.
  explicit RequestPool(const std::vector<unsigned>& shares);
  ~RequestPool();  // ends
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  /// Answers what is parked with ENOTCONN, stops what has begun, and joins.  What is parked from
  /// then on is answered like that at once.  One caller; more than once does nothing.
  void end() noexcept;

  /// Identifies a request for interrupt(); never reused, by no pool of this process.
  using Ticket = std::uint64_t;

  /// Announces a request of a share, given by its index.  An interrupt may arrive from now on; it
  /// takes effect in park().  Every announced request must be parked, or held.
  /// Throws std::bad_alloc: nothing is announced.  Of all calls about a request only this one needs
  /// memory, so that each request, once announced, is answered.
  Ticket announce(std::size_t share);

  /// What a worker does: returns the function that sends the answer, which then runs at once on the
  /// same thread (so it may refer to thread_local memory).  Instead it may announce and park the
  /// request anew.  The work gets a context whose stop token fires when the caller has given up,
  /// and whose deadline is the request's.  What either throws becomes an errno; the function may
  /// only throw before it has answered.
  using Work = std::function<std::function<void()>(const Context&)>;

  /// Queues `work`.  If the deadline passes first the caller gets ETIMEDOUT, if it is interrupted
  /// and gives up EINTR, if the pool ends ENOTCONN; see OnGiveUp for work that has begun.
  /// From here on the request belongs to the pool: it may be answered, and gone, before park()
  /// returns.
  void park(Ticket ticket, std::unique_ptr<Reply> reply, Clock::time_point deadline, Work work,
            OnGiveUp on_give_up = OnGiveUp::abandon) noexcept;

  /// As park(), but no worker takes it before wake() was called, however early: for what waits for
  /// something else than a worker.  Deadline and interrupts count from now on.
  void hold(Ticket ticket, std::unique_ptr<Reply> reply, Clock::time_point deadline,
            Work work) noexcept;

  /// What the request waits for is there.  Quick; may be called under locks.  Unknown tickets are
  /// ignored.
  void wake(Ticket ticket) noexcept;

  /// The caller does not wait any longer.  Never answers itself, so it may be called under locks
  /// that an answer would take.  Unknown tickets are ignored.
  void interrupt(Ticket ticket) noexcept;

  /// Requests parked and not yet answered; without what has begun and is to finish.
  [[nodiscard]] std::size_t parked_count() const;
  /// Of these: held, and not woken yet.
  [[nodiscard]] std::size_t held_count() const;
  /// Workers started so far.
  [[nodiscard]] std::size_t worker_count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
