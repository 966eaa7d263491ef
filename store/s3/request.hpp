// S3Client: sends one request to a service until it is carried out or refused: signs it, retries
// transient failures and slows down when it is throttled (store/http/retry_loop.hpp), learns the
// service's clock, renews keys.
//
//     RequestTimeTooSkewed           again at once with the service's clock, once; where the clocks
//                                    agree it only came late: again, after a pause
//     an expired or unknown key,     again at once, once, if there are other keys by now: files are
//     a wrong signature              read anew
//     an unknown key, and no other   again, once, after a pause: another host of the service may
//     one                            know it
//     a wrong signature, after one   again, after pauses: the secret was changed, and whoever did
//     that was right                 it may be about to write it where this host looks
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/aws/credentials.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/http/redirects.hpp"
#include "store/http/retry_loop.hpp"
#include "store/s3/address.hpp"
#include "store/s3/error.hpp"

namespace weightfs {

/// One request.  The caller owns what it refers to until send() returns.
struct S3Call {
  std::string_view action;  // "read", "write", "list", "remove", "abort": for messages and rights
  std::string_view key;     // for messages
  std::string method = "GET";
  HttpTarget target;
  std::vector<HttpHeader> headers = {};
  const Source* body = nullptr;
  std::uint64_t body_offset = 0, body_bytes = 0;
  std::string body_sha256 = std::string(kEmptySha256);
  std::span<std::byte> into = {};
  bool follow = false;   // redirects, without credentials (store/http/redirects.hpp)
  bool goes_on = false;  // a read that does not begin at the object's first byte
  /// It has an effect once, so a refusal says nothing of an earlier attempt that may have had it.
  bool is_once = false;

  std::vector<int> expected = {};  // statuses other than 2xx that are answers
  /// Why an answer is invalid, so that the request is retried; empty: it is valid.  May throw
  /// Error: another attempt would not do.
  std::function<std::string(const HttpReply&)> problem = {};
};

/// An S3Call::problem that reads the text of a 2xx answer: `read` throws Error: unavailable, if it
/// is invalid.
template <typename Read>
std::function<std::string(const HttpReply&)> problem_of_text(Read read) {
  return [read](const HttpReply& reply) -> std::string {
    if (!reply.ok()) return "";
    try {
      read(reply.text);
      return "";
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      return error.what();
    }
  };
}

/// An S3Call::problem: whoever wrote an object, or a part, says its ETag.  What stands before the
/// service does not: a page about maintenance, the challenge of a firewall.
std::string missing_etag(const HttpReply& reply);

struct S3Answer {
  HttpReply reply;
  bool repeated = false;  // an earlier attempt may have been carried out as well
};

/// The error of a call whose last attempt was refused, and an earlier one may have had its effect.
[[nodiscard]] Error may_be_done(const Error& refusal);

class S3Client {
 public:
  S3Client(S3Address address, const S3Settings& settings, Environment environment);

  /// Returns: a 2xx answer without a problem, or an expected one.
  /// Throws Error: as store/bucket/bucket.hpp; it names the bucket, the key, how often it was tried
  /// and why.
  S3Answer send(const S3Call& call, const Context& context);

  /// The Error for an answer that the caller does not accept.
  [[nodiscard]] Error refusal_of(const S3Call& call, const HttpReply& reply) const;

  [[nodiscard]] const S3Address& address() const noexcept { return address_; }
  [[nodiscard]] Redirects& redirects() noexcept { return redirects_; }

  /// The service's time, as far as it is known.
  [[nodiscard]] std::chrono::system_clock::time_point now() const;

 private:
  struct Try;
  using Outcome = RetryLoop::Outcome;
  using Attempts = RetryLoop::Attempts;
  Outcome take(const S3Call& call, Try& state, Attempts& attempts, HttpReply reply,
               const Context& context);
  Outcome judge(const S3Call& call, Try& state, Attempts& attempts, const S3Refusal& refusal,
                const Context& context);
  Outcome judge_keys(Try& state, const S3Refusal& refusal, const Context& context);
  HttpReply exchange(const S3Call& call, const AwsCredentials& keys, const Context& context);
  HttpReply follow(const S3Call& call, HttpReply reply, const Context& context);
  void keep(const S3Call& call, const std::string& url, const HttpReply& reply);
  HttpReply fetch(const S3Call& call, const std::string& url, const Context& context);
  [[nodiscard]] bool came_late(const S3Refusal& refusal) const;
  void learn_clock(std::chrono::system_clock::time_point date);
  [[nodiscard]] std::string about(const S3Call& call) const;
  [[nodiscard]] std::string doing(const S3Call& call) const;

  const S3Address address_;
  const bool sign_;
  AwsCredentialChain credentials_;
  Signer signer_;
  RetryLoop retries_;
  Redirects redirects_;
  std::atomic<std::int64_t> clock_offset_s_{0};  // of the service's clock
  std::atomic<bool> was_carried_out_{false};     // a signed request
  HttpClient http_;
};

}  // namespace weightfs
