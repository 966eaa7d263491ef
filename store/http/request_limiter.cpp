#include "store/http/request_limiter.hpp"

#include <algorithm>
#include <mutex>

namespace weightfs {
namespace {

constexpr std::chrono::seconds kLongestWait{3600};  // one wait; the deadline may be infinite

}  // namespace

RequestLimiter::Place::Place(RequestLimiter& limiter, const Context& context) : limiter_(limiter) {
  std::unique_lock lock(limiter_.mutex_);
  while (!limiter_.changed_.wait_until(lock, context.stop,
                                       std::min(context.deadline, Clock::now() + kLongestWait),
                                       [&] { return limiter_.in_flight_ < limiter_.limit_; })) {
    context.check("waiting for other requests");
  }
  limiter_.in_flight_++;
  round_ = limiter_.round_;
}

RequestLimiter::Place::~Place() {
  {
    const std::lock_guard lock(limiter_.mutex_);
    limiter_.in_flight_--;
  }
  limiter_.changed_.notify_one();
}

void RequestLimiter::Place::succeeded() {
  {
    const std::lock_guard lock(limiter_.mutex_);
    if (limiter_.limit_ == limiter_.most_) return;
    limiter_.limit_++;
  }
  limiter_.changed_.notify_all();
}

void RequestLimiter::Place::throttled() {
  const std::lock_guard lock(limiter_.mutex_);
  if (round_ != limiter_.round_) return;
  limiter_.round_++;
  limiter_.limit_ = std::max(1u, limiter_.limit_ / 2);
}

unsigned RequestLimiter::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

}  // namespace weightfs
