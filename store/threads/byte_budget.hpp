// ByteBudget: bounds the bytes that several threads hold at a time.
//
// Threads: all calls may run in parallel.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs {

class ByteBudget {
 public:
  explicit ByteBudget(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  /// Bytes taken from the budget, and returned by the destructor.
  class Share {
   public:
    Share(ByteBudget& budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { budget_.give_back(bytes_); }

   private:
    ByteBudget& budget_;
    const std::uint64_t bytes_;
  };

  /// Waits until `bytes` fit into the budget; a larger amount waits until nothing else is taken.
  /// Throws Error: cancelled, timed_out; `what` as for Context::check().
  [[nodiscard]] Share take(std::uint64_t bytes, const Context& context, std::string_view what) {
    constexpr auto kLookAgain = std::chrono::hours(1);  // the deadline may be infinite
    std::unique_lock lock(mutex_);
    while (!given_back_.wait_until(
        lock, context.stop, std::min(context.deadline, Clock::now() + kLookAgain),
        [&] { return in_hand_ == 0 || in_hand_ + bytes <= bytes_max_; })) {
      context.check(what);
    }
    in_hand_ += bytes;
    return {*this, bytes};
  }

 private:
  void give_back(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    in_hand_ -= bytes;
    given_back_.notify_all();
  }

  const std::uint64_t bytes_max_;
  RankedMutex mutex_{LockRank::leaf, "ByteBudget::mutex_"};  // guards in_hand_
  std::condition_variable_any given_back_;
  std::uint64_t in_hand_ = 0;
};

}  // namespace weightfs
