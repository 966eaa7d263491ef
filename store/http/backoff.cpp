#include "store/http/backoff.hpp"

#include <algorithm>
#include <random>

namespace weightfs {

namespace {

constexpr Clock::duration kPauseBase = std::chrono::milliseconds(100);
constexpr Clock::duration kPauseMax = std::chrono::seconds(20);
constexpr std::chrono::seconds kRetryAfterMax{60};

Clock::duration random_below(Clock::duration limit) {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return Clock::duration(std::uniform_int_distribution<Clock::rep>(0, limit.count())(generator));
}

}  // namespace

bool RetryBudget::take() {
  const std::lock_guard lock(mutex_);
  if (tokens_ < kTokensOfRetry) return false;
  tokens_ -= kTokensOfRetry;
  return true;
}

void RetryBudget::succeeded(bool retried) {
  const std::lock_guard lock(mutex_);
  tokens_ = std::min(kTokensMax, tokens_ + (retried ? kTokensOfRetry : kTokensOfSuccess));
}

std::optional<Clock::duration> Backoff::next(std::optional<std::chrono::seconds> at_least) {
  const unsigned doublings = std::min(made_, 20u);  // 2^20 x 100 ms exceeds every limit
  made_++;
  if (left_ > 0) left_--;
  if (left_ == 0 || !budget_.take()) return std::nullopt;
  const Clock::duration limit = std::min(kPauseMax, kPauseBase * (1u << doublings));
  // Added to Retry-After: with the maximum of both, all hosts with the same Retry-After would
  // return together.
  const auto asked = std::clamp(at_least.value_or(std::chrono::seconds(0)), std::chrono::seconds(0),
                                kRetryAfterMax);
  return asked + random_below(limit);
}

}  // namespace weightfs
