// ReorderBuffer: results that several threads make in parallel, taken one at a time in the order of
// their numbers.
//
//     threads   wait_turn(i), make, put(i, result)      i < next + ahead
//     taker     the thread that put the missing result; the others continue
//
// Threads: all calls may run in parallel; `take` is never called by two threads at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "store/base/ranked_mutex.hpp"

namespace weightfs {

template <typename Result>
class ReorderBuffer {
 public:
  /// At most `ahead` results are being made or wait to be taken.
  ReorderBuffer(std::size_t ahead, std::function<void(const Result&)> take)
      : ahead_(ahead), take_(std::move(take)) {}

  /// Waits until result `index` may be made.
  /// Requires: all lower numbers have been started, so that one thread can always proceed.
  /// Returns: false after fail().
  [[nodiscard]] bool wait_turn(std::size_t index) {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return failed_ || index < next_ + ahead_; });
    return !failed_;
  }

  /// Hands over result `index`; calls `take` for it and its successors once all before it are
  /// taken.  Throws what `take` throws; the caller then calls fail().
  void put(std::size_t index, Result result) {
    std::unique_lock lock(mutex_);
    ready_.emplace(index, std::move(result));
    if (is_taking_) return;
    is_taking_ = true;
    while (auto found = ready_.extract(next_)) {
      lock.unlock();
      take_(found.mapped());
      lock.lock();
      next_++;
      moved_.notify_all();
    }
    is_taking_ = false;
  }

  /// Ends all waits.
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    moved_.notify_all();
  }

 private:
  const std::size_t ahead_;
  const std::function<void(const Result&)> take_;
  RankedMutex mutex_{LockRank::leaf, "ReorderBuffer::mutex_"};  // guards the others
  std::condition_variable_any moved_;
  std::map<std::size_t, Result> ready_;
  std::size_t next_ = 0;
  bool is_taking_ = false, failed_ = false;
};

}  // namespace weightfs
