#include "store/s3/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/base/log.hpp"
#include "store/bucket/bucket.hpp"
#include "store/http/reply_checks.hpp"

namespace weightfs {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;

constexpr std::string_view kUserAgent = "weightfs/" WEIGHTFS_VERSION;

HttpOptions http_options(const S3Settings& settings, const S3Address& address) {
  HttpOptions options;
  options.ca_bundle = settings.ca_bundle;
  options.ca_variable = "AWS_CA_BUNDLE";
  options.connections_max = RetryLoop::kRequestsMax;
  options.http_allowed = address.scheme_and_host.starts_with("http://");
  return options;
}

constexpr std::chrono::seconds kSecretPause{3};

/// Whether a status in `expected` is really an answer, rather than a temporary or credential
/// problem.
bool is_expected(const S3Call& call, const S3Refusal& refusal) {
  const bool listed =
      std::find(call.expected.begin(), call.expected.end(), refusal.status) != call.expected.end();
  if (call.method == "HEAD") return listed;  // there is no text that says more
  return listed && !refusal.is_transient() && !refusal.is_expired_token() &&
         !refusal.is_skewed_clock();
}

/// Whether it is unknown anyway what became of the request.
bool is_unanswered(ErrorCode code) {
  return code == ErrorCode::unavailable || code == ErrorCode::timed_out ||
         code == ErrorCode::cancelled;
}

/// Whether a redirect's target has expired; 416 concerns only the range.
bool is_stale(const HttpReply& reply) { return !reply.ok() && reply.status != 416; }

}  // namespace

/// What one call has learned from its attempts.
struct S3Client::Try {
  AwsCredentials keys;
  std::optional<S3Answer> answer;
  bool learned_clock = false, renewed_keys = false;
  bool may_be_done = false;  // an attempt before the last one may have been carried out
};

S3Client::S3Client(S3Address address, const S3Settings& settings, Environment environment)
    : address_(std::move(address)),
      sign_(settings.sign),
      credentials_(settings.identity(), std::move(environment)),
      signer_(address_.is_hf ? "us-east-1" : settings.region, "s3"),
      retries_(std::max(1u, settings.attempts_max)),
      redirects_(address_.scheme_and_host.starts_with("http://")),
      http_(http_options(settings, address_)) {}

std::string missing_etag(const HttpReply& reply) {
  return !reply.ok() || reply.find("ETag") ? "" : "the answer to a write has no ETag";
}

Error may_be_done(const Error& refusal) {
  return {ErrorCode::unavailable,
          fmt::format("{}; an earlier attempt may have been carried out", refusal.what())};
}

S3Answer S3Client::send(const S3Call& call, const Context& context) {
  Try state;
  try {
    retries_.run(
        about(call), doing(call),
        [&](Attempts& attempts) {
          state.may_be_done = attempts.repeated;  // by those before
          if (sign_) state.keys = credentials_.get(context);
          return take(call, state, attempts, exchange(call, state.keys, context), context);
        },
        context);
  } catch (const Error& error) {
    if (!call.is_once || !state.may_be_done || is_unanswered(error.code())) throw;
    throw may_be_done(error);
  }
  return std::move(*state.answer);
}

S3Client::Outcome S3Client::take(const S3Call& call, Try& state, Attempts& attempts,
                                 HttpReply reply, const Context& context) {
  attempts.repeated = attempts.repeated || reply.sent_twice;
  const S3Refusal refusal = reply.ok() ? S3Refusal{} : read_refusal(reply);
  if (!reply.ok() && !is_expected(call, refusal)) {
    return judge(call, state, attempts, refusal, context);
  }
  const std::string problem = call.problem ? call.problem(reply) : "";
  if (!problem.empty()) {
    attempts.repeated = true;
    attempts.cause = Error(ErrorCode::unavailable, problem).within(about(call));
    return Outcome::again;
  }
  if (reply.ok() && sign_) was_carried_out_ = true;
  state.answer = S3Answer{std::move(reply), attempts.repeated};
  return Outcome::answered;
}

S3Client::Outcome S3Client::judge(const S3Call& call, Try& state, Attempts& attempts,
                                  const S3Refusal& refusal, const Context& context) {
  attempts.cause = to_error(refusal, address_, call.action, call.key, state.keys.access_key_id,
                            state.keys.source);
  attempts.throttled = refusal.is_throttling();
  attempts.retry_after = refusal.retry_after;
  attempts.repeated = attempts.repeated || refusal.status >= 500 || refusal.status == 408;
  if (came_late(refusal)) {
    attempts.cause = Error(ErrorCode::unavailable, attempts.cause->what());
    return Outcome::again;
  }
  if (refusal.is_skewed_clock() && refusal.date && !state.learned_clock) {
    state.learned_clock = true;
    learn_clock(*refusal.date);
    return Outcome::again_at_once;
  }
  if (refusal.is_about_keys() && sign_) {
    // Many requests may wait for the same secret: they must not use up the retries of all.
    if (refusal.is_wrong_signature()) attempts.retry_after = kSecretPause;
    return judge_keys(state, refusal, context);
  }
  return refusal.is_transient() ? Outcome::again : Outcome::refused;
}

/// Files of keys may have been rotated, the secret alone too.
S3Client::Outcome S3Client::judge_keys(Try& state, const S3Refusal& refusal,
                                       const Context& context) {
  const bool is_first = !std::exchange(state.renewed_keys, true);
  // Whoever changes a secret at the service writes it to a file only then.
  const bool may_come = refusal.is_wrong_signature() && was_carried_out_;
  if (!is_first && !may_come) return refusal.is_transient() ? Outcome::again : Outcome::refused;
  if (refusal.is_wrong_signature()) {
    credentials_.doubted(state.keys);
  } else {
    credentials_.refused(state.keys);
  }
  if (!same_keys(credentials_.get(context), state.keys) && is_first) return Outcome::again_at_once;
  // One of several hosts of a service may not have heard of new keys.
  return may_come || refusal.is_unknown_key() ? Outcome::again : Outcome::refused;
}

/// Sends one request and follows its redirects.
HttpReply S3Client::exchange(const S3Call& call, const AwsCredentials& keys,
                             const Context& context) {
  if (call.follow) {
    if (const auto url = redirects_.find(call.key, call.goes_on)) {
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
    keep(call, from, reply);
  }
  if (from == address_.scheme_and_host || !is_stale(reply)) return reply;
  // Another host's error about the object is not an answer of the service.
  throw TransportError(
      ErrorCode::unavailable, TransportError::Kind::other,
      fmt::format("the host that the service redirects to answers {}", reply.status));
}

/// Of an object that may be overwritten the target holds for what is left of it, not for who reads
/// it again; of one that has been read as a whole nothing is left.
void S3Client::keep(const S3Call& call, const std::string& url, const HttpReply& reply) {
  const std::uint64_t size = find_whole_size(reply).value_or(0);
  if (is_stale(reply) || size <= reply.received_bytes) return;
  const bool is_lasting = size > kRewrittenBytesMax;
  redirects_.keep(call.key, url,
                  is_lasting ? Redirects::Holds::for_all : Redirects::Holds::for_rest);
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
