// Backoff: when a request to a service is tried again, and how often.
//
// Full jitter: pause k (from 0 on) is random between 0 and the smaller of 20 s and 100 ms x 2^k, so
// that a thousand hosts that failed together do not come back together; Retry-After (capped at 60
// s) is added to it.  A token bucket over all requests of a client keeps it from sending ten times
// as many requests to a service that fails everything: each retry takes a token, a success gives
// back that of its last retry, or a part of one if it needed none.  Source: AWS architecture blog
// "Exponential backoff and jitter"; the retry quota of the AWS SDKs' "standard" mode.
//
// Threads: RetryBudget may be used in parallel; Backoff belongs to one request.
#pragma once

#include <chrono>
#include <optional>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs {

class RetryBudget {
 public:
  static constexpr double kTokensMax = 100, kTokensOfRetry = 1, kTokensOfSuccess = 0.2;

  /// false: no token is left, so the request fails now.
  [[nodiscard]] bool take();
  /// `retried`: the request took at least one token.
  void succeeded(bool retried);

 private:
  RankedMutex mutex_{LockRank::leaf, "RetryBudget::mutex_"};  // guards tokens_
  double tokens_ = kTokensMax;
};

class Backoff {
 public:
  /// `attempts_max`: of the request, the first one too (AWS_MAX_ATTEMPTS).
  Backoff(RetryBudget& budget, unsigned attempts_max) : budget_(budget), left_(attempts_max) {}

  /// Called after an attempt that failed.  `at_least`: Retry-After.
  /// Returns: how long to pause before the next attempt; nullopt: give up.
  [[nodiscard]] std::optional<Clock::duration> next(std::optional<std::chrono::seconds> at_least);

  [[nodiscard]] unsigned attempts() const noexcept { return made_; }  // made so far

 private:
  RetryBudget& budget_;
  unsigned left_, made_ = 0;
};

}  // namespace weightfs
