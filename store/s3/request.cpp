#include "store/s3/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"

namespace weightfs {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;

constexpr std::string_view kUserAgent = "weightfs/" WEIGHTFS_VERSION;
constexpr seconds kLongest{3600};  // one wait; the deadline may be infinite

HttpOptions http_options(const S3Settings& settings, const S3Address& address) {
  HttpOptions options;
  options.ca_bundle = settings.ca_bundle;
  options.connections_max = S3Client::kRequestsMax;
  options.http_allowed = address.scheme_and_host.starts_with("http://");
  return options;
}

/// Whether a status in `expected` is really an answer, rather than a temporary or credential
/// problem.
bool is_expected(const S3Call& call, const S3Refusal& refusal) {
  const bool listed =
      std::find(call.expected.begin(), call.expected.end(), refusal.status) != call.expected.end();
  return listed && !refusal.is_transient() && !refusal.is_expired_token() &&
         !refusal.is_skewed_clock();
}

/// Whether a redirect's target has expired; 416 concerns only the range.
bool is_stale(const HttpReply& reply) { return !reply.ok() && reply.status != 416; }

}  // namespace

// ---- the limiter ----

RequestLimiter::Place::Place(RequestLimiter& limiter, const Context& context) : limiter_(limiter) {
  std::unique_lock lock(limiter_.mutex_);
  while (!limiter_.changed_.wait_until(lock, context.stop,
                                       std::min(context.deadline, Clock::now() + kLongest),
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

// ---- the client ----

/// The state of one call across its attempts.
struct S3Client::Try {
  Try(RetryBudget& budget, unsigned attempts_max) : backoff(budget, attempts_max) {}

  Backoff backoff;
  AwsCredentials keys;
  std::optional<S3Answer> answer;
  std::optional<Error> cause;  // error of the last attempt
  std::optional<seconds> retry_after;
  bool pause = true;      // before the next attempt
  bool reached = true;    // whether the last attempt reached the service
  bool repeated = false;  // an attempt without a known answer may have been carried out
  bool learned_clock = false, renewed_keys = false;
};

S3Client::S3Client(S3Address address, const S3Settings& settings, Environment environment)
    : address_(std::move(address)),
      attempts_max_(std::max(1u, settings.attempts_max)),
      sign_(settings.sign),
      credentials_(settings.identity(), std::move(environment)),
      signer_(address_.is_hf ? "us-east-1" : settings.region, "s3"),
      redirects_(address_.scheme_and_host.starts_with("http://")),
      http_(http_options(settings, address_)) {}

S3Answer S3Client::send(const S3Call& call, const Context& context) {
  Try state(budget_, attempts_max_);
  for (;;) {
    context.check(doing(call));
    if (attempt(call, state, context)) {
      budget_.succeeded();
      return std::move(*state.answer);
    }
    if (state.pause) wait(call, state, context);
  }
}

/// Returns: true if there is an answer; false if another attempt is worthwhile.
bool S3Client::attempt(const S3Call& call, Try& state, const Context& context) {
  state.pause = true;
  state.reached = true;
  state.retry_after.reset();
  std::optional<RequestLimiter::Place> place;
  HttpReply reply;
  try {
    if (sign_) state.keys = credentials_.get(context);
    place.emplace(limiter_, context);
    reply = exchange(call, state.keys, context);
  } catch (const TransportError& error) {
    state.cause = error.within(about(call));
    if (error.code() != ErrorCode::unavailable) throw *state.cause;
    state.reached = error.may_have_arrived();
    state.repeated = state.repeated || error.may_have_arrived();
    return false;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timed_out || !state.cause) throw error.within(about(call));
    throw Error(ErrorCode::timed_out,
                fmt::format("{}; before that: {}", error.what(), state.cause->what()));
  }
  return take(call, state, std::move(reply), *place);
}

/// As attempt(), for any reply.
bool S3Client::take(const S3Call& call, Try& state, HttpReply reply, RequestLimiter::Place& place) {
  reached_ = true;
  state.repeated = state.repeated || reply.sent_twice;
  const S3Refusal refusal = reply.ok() ? S3Refusal{} : read_refusal(reply);
  if (reply.ok() || is_expected(call, refusal)) {
    const std::string problem = call.problem ? call.problem(reply) : "";
    if (problem.empty()) {
      place.succeeded();
      state.answer = S3Answer{std::move(reply), state.repeated};
      return true;
    }
    state.repeated = true;
    state.cause = Error(ErrorCode::unavailable, problem).within(about(call));
    return false;
  }
  if (refusal.is_throttling()) place.throttled();
  judge(call, state, refusal);
  return false;
}

/// Throws for a refusal that another attempt would get again.
void S3Client::judge(const S3Call& call, Try& state, const S3Refusal& refusal) {
  state.cause = to_error(refusal, address_, call.action, call.key, state.keys.access_key_id,
                         state.keys.source);
  const bool is_unknown_key = refusal.code == "InvalidAccessKeyId";  // of key files that were
                                                                     // rotated
  if (came_late(refusal)) {
    state.cause = Error(ErrorCode::unavailable, state.cause->what());
  } else if (refusal.is_skewed_clock() && refusal.date && !state.learned_clock) {
    state.learned_clock = true;
    learn_clock(*refusal.date);
    state.pause = false;
  } else if ((refusal.is_expired_token() || is_unknown_key) && sign_ && !state.renewed_keys) {
    state.renewed_keys = true;
    credentials_.refused(state.keys);
    state.pause = false;
  } else if (!refusal.is_transient()) {
    throw *state.cause;
  }
  state.retry_after = refusal.retry_after;
  state.repeated = state.repeated || refusal.status >= 500 || refusal.status == 408;
}

/// Pauses before the next attempt, or throws why there is none.
void S3Client::wait(const S3Call& call, Try& state, const Context& context) {
  const auto pause = state.backoff.next(state.retry_after);
  const unsigned attempts = state.backoff.attempts();
  const bool is_lost = !reached_ && !state.reached && attempts >= kFirstAttemptsMax;
  if (!pause || is_lost) {
    if (attempts == 1) throw *state.cause;
    throw Error(state.cause->code(),
                fmt::format("{}; given up after {} attempts", state.cause->what(), attempts));
  }
  log_debug(fmt::format("attempt {} failed: {}", attempts, state.cause->what()));
  if (context.deadline != Clock::time_point::max() && Clock::now() + *pause >= context.deadline) {
    throw Error(ErrorCode::timed_out,
                fmt::format("timed out after {}: {}", count_text(attempts, "attempt"),
                            state.cause->what()));
  }
  context.pause(*pause, doing(call));
}

/// Sends one request and follows its redirects.
HttpReply S3Client::exchange(const S3Call& call, const AwsCredentials& keys,
                             const Context& context) {
  if (call.follow) {
    if (const auto url = redirects_.find(call.key)) {
      try {
        HttpReply reply = fetch(call, *url, context);
        if (!is_stale(reply)) return reply;
      } catch (const TransportError& error) {
        log_debug(fmt::format("a host that the service redirected to failed: {}", error.what()));
      }
      redirects_.forget(call.key);
    }
  }
  HttpRequest request{.method = call.method,
                      .url = {},
                      .headers = call.headers,
                      .body = call.body,
                      .body_offset = call.body_offset,
                      .body_bytes = call.body_bytes,
                      .into = call.into};
  request.headers.push_back({"User-Agent", std::string(kUserAgent)});
  if (sign_) {
    signer_.sign(request, call.target, call.body_sha256, keys, now());
  } else {
    request.url = call.target.url();
  }
  HttpReply reply = http_.send(request, context);
  return call.follow ? follow(call, std::move(reply), context) : reply;
}

/// Follows redirects of reads.  AWS redirects to another region instead, and names it in the
/// answer.
HttpReply S3Client::follow(const S3Call& call, HttpReply reply, const Context& context) {
  std::string from = address_.scheme_and_host;
  for (unsigned hops = 0;; hops++) {
    const bool is_region = address_.is_aws || reply.find("x-amz-bucket-region").has_value();
    if (hops == 0 && is_region) return reply;
    const auto url = redirects_.next(reply, from);
    if (!url) break;
    if (hops == kRedirectsMax) {
      throw TransportError(ErrorCode::unavailable, TransportError::Kind::other,
                           "the service redirects too often");
    }
    from = *url;
    reply = fetch(call, from, context);
    if (!is_stale(reply)) redirects_.keep(call.key, from);
  }
  if (from == address_.scheme_and_host || !is_stale(reply)) return reply;
  // Another host's error about the object is not an answer of the service.
  throw TransportError(
      ErrorCode::unavailable, TransportError::Kind::other,
      fmt::format("the host that the service redirects to answers {}", reply.status));
}

/// A request to another host: carries no header but the range.
HttpReply S3Client::fetch(const S3Call& call, const std::string& url, const Context& context) {
  HttpRequest request;
  request.url = url;
  request.into = call.into;
  for (const HttpHeader& header : call.headers) {
    if (header.name == "Range") request.headers.push_back(header);
  }
  request.headers.push_back({"User-Agent", std::string(kUserAgent)});
  return http_.send(request, context);
}

Error S3Client::refusal_of(const S3Call& call, const HttpReply& reply) const {
  return to_error(read_refusal(reply), address_, call.action, call.key, "", "");
}

system_clock::time_point S3Client::now() const {
  return system_clock::now() + seconds(clock_offset_s_);
}

/// Whether it was refused for its time although the clocks agree: then it was too long in transit.
bool S3Client::came_late(const S3Refusal& refusal) const {
  constexpr seconds kAgreement{60};
  return refusal.is_skewed_clock() && refusal.date &&
         std::chrono::abs(*refusal.date - now()) < kAgreement;
}

void S3Client::learn_clock(system_clock::time_point date) {
  const auto offset = std::chrono::round<seconds>(date - system_clock::now());
  clock_offset_s_ = offset.count();
  log_warning(
      fmt::format("this clock differs by {} s from that of {}, which is used from now on; run "
                  "timedatectl",
                  std::abs(offset.count()), address_.scheme_and_host));
}

std::string S3Client::about(const S3Call& call) const {
  return fmt::format("bucket {}: cannot {} object {}", address_.url, call.action, call.key);
}

std::string S3Client::doing(const S3Call& call) const {
  return fmt::format("asking bucket {} to {} object {}", address_.url, call.action, call.key);
}

}  // namespace weightfs
