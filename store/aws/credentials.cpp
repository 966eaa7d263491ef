#include "store/aws/credentials.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "store/aws/answers.hpp"
#include "store/aws/sources.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/os/core_dumps.hpp"

namespace weightfs {
namespace {

using WallClock = std::chrono::system_clock;

constexpr auto kRefreshEarly = std::chrono::minutes(5);
constexpr auto kRefreshPause = std::chrono::seconds(30);  // after a failure, while the keys are
                                                          // valid
constexpr auto kDoubtPause = std::chrono::seconds(3);     // between two questions for a doubt

// Five minutes before the keys expire; half-way if they live less than ten.
WallClock::time_point refresh_time(const AwsCredentials& keys, WallClock::time_point now) {
  if (keys.expires == WallClock::time_point::max()) return keys.expires;
  return keys.expires - std::min<WallClock::duration>(kRefreshEarly, (keys.expires - now) / 2);
}

}  // namespace

bool same_keys(const AwsCredentials& a, const AwsCredentials& b) {
  return a.access_key_id == b.access_key_id && a.secret_access_key == b.secret_access_key &&
         a.session_token == b.session_token;
}

class AwsCredentialChain::Impl {
 public:
  Impl(AwsIdentity identity, Environment environment)
      : sources_(std::move(identity), std::move(environment)) {}

  AwsCredentials get(const Context& context) {
    std::unique_lock lock(mutex_);
    for (;;) {
      context.check("waiting for AWS credentials");
      const auto now = WallClock::now();
      if (is_valid(now) && (fetching_ ? !is_doubted_ : now < refresh_at_)) return *held_;
      if (!fetching_) return fetch(lock, context);
      wait_for_fetch(lock, context);
    }
  }

  void refused(const AwsCredentials& credentials) {
    const std::scoped_lock lock(mutex_);
    if (held_ && same_keys(*held_, credentials)) held_.reset();
  }

  void doubted(const AwsCredentials& credentials) {
    const std::scoped_lock lock(mutex_);
    const auto now = WallClock::now();
    if (!held_ || !same_keys(*held_, credentials) || now < doubt_again_at_) return;
    doubt_again_at_ = now + kDoubtPause;
    refresh_at_ = {};
    is_doubted_ = true;
  }

 private:
  [[nodiscard]] bool is_valid(WallClock::time_point now) const {
    return held_ && now < held_->expires;
  }

  // Asks the sources with the mutex unlocked.
  AwsCredentials fetch(std::unique_lock<RankedMutex>& lock, const Context& context) {
    const auto begun = WallClock::now();
    fetching_ = true;
    lock.unlock();
    AwsCredentials keys;
    std::exception_ptr failure;
    try {
      keys = sources_.fetch(context);
      check_fetched(keys);
    } catch (const Error& error) {
      // A missing file, such as a token's, must not be taken for a missing object.
      const bool is_missing = error.code() == ErrorCode::not_found;
      failure = is_missing ? std::make_exception_ptr(Error(ErrorCode::unavailable, error.what()))
                           : std::current_exception();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    fetching_ = is_doubted_ = false;
    fetches_++;
    failure_ = failure;
    ended_.notify_all();
    if (failure) return keep_held(failure, begun);
    if (!held_ || !same_keys(*held_, keys)) {
      log_debug("AWS keys " + shown_key_id(keys.access_key_id) + " from " + keys.source);
    }
    refresh_at_ = refresh_time(keys, WallClock::now());
    is_logged_ = false;
    held_ = std::move(keys);
    return *held_;
  }

  // Who renews them may be late.
  static void check_fetched(const AwsCredentials& keys) {
    if (WallClock::now() < keys.expires) return;
    throw Error(ErrorCode::unavailable,
                "the AWS keys of " + keys.source +
                    " have expired: renew them, and check this host's clock");
  }

  // After a failure: uses keys that are still valid, and leaves the sources alone for a while; for
  // doubts, for which all requests wait, the longer the slower they are.
  AwsCredentials keep_held(const std::exception_ptr& failure, WallClock::time_point begun) {
    const auto now = WallClock::now();
    if (!is_valid(now)) std::rethrow_exception(failure);
    refresh_at_ = now + std::min<WallClock::duration>(kRefreshPause, (held_->expires - now) / 4);
    doubt_again_at_ =
        now + std::clamp<WallClock::duration>(4 * (now - begun), kDoubtPause, kRefreshPause);
    if (!is_logged_) log_failure(failure);
    is_logged_ = true;
    return *held_;
  }

  void log_failure(const std::exception_ptr& failure) const {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      log_warning(
          std::string("cannot renew the AWS keys; the current ones are used until they expire: ") +
          error.what());
    }
  }

  // Waits until the running fetch has ended.  Its failure counts for this caller too, unless it was
  // the other caller's stop or deadline.
  void wait_for_fetch(std::unique_lock<RankedMutex>& lock, const Context& context) {
    const std::uint64_t before = fetches_;
    const auto is_over = [&] { return fetches_ != before; };
    if (context.deadline == Clock::time_point::max()) {
      ended_.wait(lock, context.stop, is_over);
    } else {
      ended_.wait_until(lock, context.stop, context.deadline, is_over);
    }
    if (fetches_ == before || !failure_ || is_valid(WallClock::now())) return;
    try {
      std::rethrow_exception(failure_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::cancelled && error.code() != ErrorCode::timed_out) throw;
    }
  }

  AwsSources sources_;  // used by the caller that fetches
  RankedMutex mutex_{LockRank::leaf, "AwsCredentialChain::Impl::mutex_"};  // guards what follows
  std::condition_variable_any ended_;
  std::optional<AwsCredentials> held_;
  WallClock::time_point refresh_at_, doubt_again_at_;
  std::exception_ptr failure_;  // of the last fetch
  std::uint64_t fetches_ = 0;
  bool fetching_ = false, is_logged_ = false;
  bool is_doubted_ = false;  // the keys held are not to be used before the next fetch has ended
};

AwsCredentialChain::AwsCredentialChain(AwsIdentity identity, Environment environment) {
  keep_memory_out_of_core_dumps();
  impl_ = std::make_unique<Impl>(std::move(identity), std::move(environment));
}
AwsCredentialChain::~AwsCredentialChain() = default;

AwsCredentials AwsCredentialChain::get(const Context& context) { return impl_->get(context); }

void AwsCredentialChain::refused(const AwsCredentials& credentials) { impl_->refused(credentials); }

void AwsCredentialChain::doubted(const AwsCredentials& credentials) { impl_->doubted(credentials); }

}  // namespace weightfs
