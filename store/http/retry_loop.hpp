// RetryLoop: sends each request to one service again until it is answered or refused.
//
//     transport error, transient refusal, an answer that is not what was asked for
//                                    again, after a pause (store/http/backoff.hpp)
//     throttled                      half as many requests in flight
//     (store/http/request_limiter.hpp) an endpoint that was never reached
//                                    given up after kFirstAttemptsMax attempts: it is likely wrong
//
// What a reply means is the caller's business: it sends once and says what came of it.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/http/backoff.hpp"
#include "store/http/request_limiter.hpp"

namespace weightfs {

class RetryLoop {
 public:
  static constexpr unsigned kRequestsMax = 32;
  static constexpr unsigned kFirstAttemptsMax = 3;

  /// `attempts_max`: of a request, the first one too; at least 1.
  explicit RetryLoop(unsigned attempts_max) : attempts_max_(attempts_max) {}

  enum class Outcome {
    answered,
    again,          // after a pause
    again_at_once,  // with what was learned: a clock, a key
    refused,        // another attempt would be refused as well
  };

  /// One request across its attempts.
  struct Attempts {
    std::optional<Error> cause;  // why the last one failed; set unless it was answered
    std::optional<std::chrono::seconds> retry_after;  // as the last reply asked
    bool throttled = false;                           // the last reply asked for fewer requests
    bool repeated = false;  // one that has no known answer may have been carried out
  };
  using Send = std::function<Outcome(Attempts&)>;

  /// Returns after `send` has returned `answered`.  `about`: "cannot read X", `doing`: "reading X",
  /// for messages.
  /// Throws Error: cancelled, timed_out; the cause, if `send` refuses; unavailable, with the last
  /// cause and how often it was tried; other Errors of `send`, after `about`.
  void run(const std::string& about, const std::string& doing, const Send& send,
           const Context& context);

 private:
  struct Request;
  Outcome attempt(Request& request, const Send& send, const Context& context);
  void wait(Request& request, const Context& context);

  const unsigned attempts_max_;
  RetryBudget budget_;
  RequestLimiter limiter_{kRequestsMax};
  std::atomic<bool> reached_{false};  // some answer came
};

/// A number of attempts.  `name`: of the setting.  Throws Error: invalid.
unsigned parse_attempts_max(std::string_view text, std::string_view name);

}  // namespace weightfs
