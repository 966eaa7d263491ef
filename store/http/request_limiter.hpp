// RequestLimiter: how many requests to one service may be in flight: half as many after each round
// of throttling, one more with each success.
//
// Threads: all calls may run in parallel.
#pragma once

#include <condition_variable>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs {

class RequestLimiter {
 public:
  explicit RequestLimiter(unsigned most) : most_(most), limit_(most) {}

  /// A place among the requests in flight; given back at the end of its life.
  class Place {
   public:
    Place(RequestLimiter& limiter, const Context& context);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    void succeeded();
    /// Halves the limit, once for all requests that were in flight together.
    void throttled();

   private:
    RequestLimiter& limiter_;
    unsigned round_ = 0;
  };

  [[nodiscard]] unsigned limit() const;

 private:
  const unsigned most_;
  mutable RankedMutex mutex_{LockRank::leaf, "RequestLimiter::mutex_"};  // guards what follows
  std::condition_variable_any changed_;
  unsigned limit_, in_flight_ = 0, round_ = 0;
};

}  // namespace weightfs
