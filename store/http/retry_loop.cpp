#include "store/http/retry_loop.hpp"

#include <fmt/format.h>

#include <charconv>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/http/message.hpp"

namespace weightfs {

struct RetryLoop::Request {
  const std::string& about;
  const std::string& doing;
  Backoff backoff;
  Attempts attempts = {};
  bool reached = true;  // whether the last attempt reached the service
};

void RetryLoop::run(const std::string& about, const std::string& doing, const Send& send,
                    const Context& context) {
  Request request{about, doing, Backoff(budget_, context.repeats ? attempts_max_ : 1)};
  for (;;) {
    context.check(doing);
    switch (attempt(request, send, context)) {
      case Outcome::answered:
        return budget_.succeeded(request.backoff.attempts() > 0);
      case Outcome::refused:
        throw *request.attempts.cause;
      case Outcome::again:
        wait(request, context);
        break;
      case Outcome::again_at_once:
        break;
    }
  }
}

RetryLoop::Outcome RetryLoop::attempt(Request& request, const Send& send, const Context& context) {
  Attempts& attempts = request.attempts;
  attempts.retry_after.reset();
  attempts.throttled = false;
  request.reached = true;
  try {
    RequestLimiter::Place place(limiter_, context);
    const Outcome outcome = send(attempts);
    reached_ = true;
    if (outcome == Outcome::answered) place.succeeded();
    if (attempts.throttled) place.throttled();
    return outcome;
  } catch (const TransportError& error) {
    attempts.cause = error.within(request.about);
    request.reached = error.may_have_arrived();
    attempts.repeated = attempts.repeated || error.may_have_arrived();
    return error.code() == ErrorCode::unavailable ? Outcome::again : Outcome::refused;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timed_out || !attempts.cause) throw error.within(request.about);
    throw Error(ErrorCode::timed_out,
                fmt::format("{}; before that: {}", error.what(), attempts.cause->what()));
  }
}

/// Pauses before the next attempt, or throws why there is none.
void RetryLoop::wait(Request& request, const Context& context) {
  const Error& cause = *request.attempts.cause;
  const auto pause = request.backoff.next(request.attempts.retry_after);
  const unsigned made = request.backoff.attempts();
  const bool is_lost = !reached_ && !request.reached && made >= kFirstAttemptsMax;
  if (!pause || is_lost) {
    if (made == 1) throw cause;
    throw Error(cause.code(), fmt::format("{}; given up after {} attempts", cause.what(), made));
  }
  log_debug(fmt::format("attempt {} failed: {}", made, cause.what()));
  if (context.deadline != Clock::time_point::max() && Clock::now() + *pause >= context.deadline) {
    throw Error(ErrorCode::timed_out,
                fmt::format("timed out after {}: {}", count_text(made, "attempt"), cause.what()));
  }
  context.pause(*pause, request.doing);
}

unsigned parse_attempts_max(std::string_view text, std::string_view name) {
  constexpr unsigned kMost = 100;
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0 && number <= kMost) {
    return number;
  }
  throw Error(ErrorCode::invalid,
              fmt::format("{} is '{}': expected a number from 1 to {}", name, text, kMost));
}

}  // namespace weightfs
