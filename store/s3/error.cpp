#include "store/s3/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "store/http/reply_checks.hpp"
#include "store/s3/xml.hpp"

namespace weightfs {
namespace {

using std::chrono::system_clock;

template <std::size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

/// The error that a refusal becomes.
struct Verdict {
  ErrorCode code{};
  std::string advice;  // may be empty
};

/// The input for a verdict.
struct Circumstances {
  const S3Refusal& refusal;
  const S3Address& address;
  std::string_view action, key, access_key_id, source;

  [[nodiscard]] bool is(std::string_view code) const { return refusal.code == code; }

  /// Whose keys were used, in a form that messages may show.
  [[nodiscard]] std::string keys() const {
    if (access_key_id.empty()) return "no keys (unsigned)";
    const std::size_t shown = std::min<std::size_t>(access_key_id.size(), 4);
    return fmt::format("key ...{} from {}", access_key_id.substr(access_key_id.size() - shown),
                       source);
  }
};

std::string right_for(std::string_view action) {
  if (action == "read") {
    return "s3:GetObject, and s3:ListBucket, without which a missing object looks forbidden";
  }
  if (action == "list") return "s3:ListBucket";
  if (action == "remove") return "s3:DeleteObject";
  if (action == "abort") return "s3:AbortMultipartUpload";
  return "s3:PutObject";
}

/// Refusals because of the caller's identity.
std::optional<Verdict> judge_identity(const Circumstances& at) {
  const std::string hf_keys =
      "create S3 keys in the settings of your account at huggingface.co; HF_TOKEN itself "
      "does not work";
  if (at.refusal.is_skewed_clock()) {
    std::string advice = "this clock is off; run timedatectl";
    if (at.refusal.date) {
      const auto off =
          std::chrono::duration_cast<std::chrono::seconds>(system_clock::now() - *at.refusal.date);
      advice = fmt::format("this clock is {} s {}; run timedatectl", std::abs(off.count()),
                           off.count() > 0 ? "ahead" : "behind");
    }
    return Verdict{ErrorCode::permission, advice};
  }
  if (at.is("SignatureDoesNotMatch")) {
    return Verdict{
        ErrorCode::permission,
        fmt::format(
            "the secret key does not belong to the {}; check AWS_SECRET_ACCESS_KEY or the profile",
            at.keys())};
  }
  if (at.is("InvalidAccessKeyId") || at.is("InvalidSecurity")) {
    return Verdict{ErrorCode::permission,
                   fmt::format("the service does not know the {}; {}", at.keys(),
                               at.address.is_hf ? hf_keys : "check AWS_ACCESS_KEY_ID")};
  }
  if (at.refusal.is_expired_token()) {
    // Who renews keys may be late; a token that was never valid stays so.
    return Verdict{at.is("InvalidToken") ? ErrorCode::permission : ErrorCode::unavailable,
                   fmt::format("the session of the {} has expired; renew it", at.keys())};
  }
  if (at.refusal.status == 401 || at.refusal.status == 403) {
    return Verdict{ErrorCode::permission,
                   fmt::format("the {} needs permission for {}{}", at.keys(), right_for(at.action),
                               at.address.is_hf ? "; " + hf_keys : "")};
  }
  return std::nullopt;
}

bool is_elsewhere(const S3Refusal& refusal) {
  constexpr std::array<std::string_view, 5> kCodes{
      "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed",
      "IllegalLocationConstraintException", "InvalidRegion"};
  return is_one_of(refusal.code, kCodes) || (refusal.status >= 301 && refusal.status <= 308);
}

/// Refusals because of the bucket, region or object.
std::optional<Verdict> judge_place(const Circumstances& at) {
  if (at.is("NoSuchBucket")) {
    return Verdict{
        ErrorCode::invalid,
        fmt::format(
            "the bucket {} does not exist; weightfs does not create buckets: create it first, or "
            "check its name and the endpoint {}",
            at.address.bucket, at.address.scheme_and_host)};
  }
  if (at.is("InvalidBucketName")) {
    return Verdict{ErrorCode::invalid,
                   fmt::format("{} is not a valid bucket name there", at.address.bucket)};
  }
  if (is_elsewhere(at.refusal)) {
    return Verdict{
        ErrorCode::invalid,
        at.refusal.region.empty()
            ? std::string(
                  "the bucket is in another region; set AWS_REGION or the endpoint of the bucket")
            : fmt::format("the bucket is in region {0}; set AWS_REGION={0}", at.refusal.region)};
  }
  if (at.refusal.is_foreign()) {
    return Verdict{ErrorCode::unavailable,
                   "something before the service answered; is the service up, and the endpoint "
                   "right?"};
  }
  if (at.refusal.status == 404) return Verdict{ErrorCode::not_found, ""};
  return std::nullopt;
}

/// Refusals because of the service's limits or state.
Verdict judge_request(const Circumstances& at) {
  if (at.is("EntityTooLarge")) {
    return {ErrorCode::unsupported, "the service does not accept an object, or part, of this size"};
  }
  if (at.is("NotImplemented") || at.refusal.status == 501 || at.refusal.status == 405) {
    return {ErrorCode::unsupported,
            "the service does not support this request; use another service"};
  }
  if (at.refusal.status == 411) {
    return {ErrorCode::unsupported,
            "something between here and the service removed the Content-Length; use the "
            "service's own endpoint"};
  }
  if (at.refusal.is_throttling()) {
    return {ErrorCode::unavailable, "the service is throttling requests; try again later"};
  }
  if (at.refusal.is_transient() || at.refusal.status >= 500) return {ErrorCode::unavailable, ""};
  return {ErrorCode::invalid, ""};
}

bool is_full(const S3Refusal& refusal) {
  constexpr std::array<std::string_view, 3> kCodes{
      "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"};
  return is_one_of(refusal.code, kCodes) || refusal.status == 507;
}

Verdict judge(const Circumstances& at) {
  // Codes first: some services answer 403 for refusals that have nothing to do with the identity.
  if (is_full(at.refusal)) {
    return {ErrorCode::no_space, "the bucket is full; free space, or raise its quota"};
  }
  if (auto verdict = judge_place(at)) return *verdict;
  if (auto verdict = judge_identity(at)) return *verdict;
  return judge_request(at);
}

}  // namespace

bool S3Refusal::is_transient() const noexcept {
  constexpr std::array<std::string_view, 9> kCodes{
      "RequestTimeout",     "SlowDown",  "InternalError",
      "ServiceUnavailable", "BadDigest", "ConditionalRequestConflict",
      "OperationAborted",   "Throttled", "XAmzContentSHA256Mismatch"};
  switch (status) {
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    case 200:
      return !code.empty();
    case 404:
      return is_foreign();
    default:
      return is_one_of(code, kCodes);
  }
}

bool S3Refusal::is_throttling() const noexcept {
  return status == 429 || status == 503 || code == "SlowDown" || code == "Throttled";
}

bool S3Refusal::is_skewed_clock() const noexcept {
  constexpr std::array<std::string_view, 3> kCodes{"RequestTimeTooSkewed", "RequestExpired",
                                                   "RequestInTheFuture"};
  return is_one_of(code, kCodes);
}

bool S3Refusal::is_expired_token() const noexcept {
  constexpr std::array<std::string_view, 4> kCodes{"ExpiredToken", "ExpiredTokenException",
                                                   "TokenRefreshRequired", "InvalidToken"};
  return is_one_of(code, kCodes);
}

bool S3Refusal::is_about_keys() const noexcept {
  return is_expired_token() || is_unknown_key() || is_wrong_signature();
}

bool S3Refusal::is_foreign() const noexcept {
  return status == 404 && code.empty() && request_id.empty() && is_page;
}

S3Refusal read_refusal(const HttpReply& reply) {
  S3Refusal refusal;
  refusal.status = reply.status;
  if (auto error = read_s3_error(reply.text)) {
    refusal.code = std::move(error->code);
    refusal.message = std::move(error->message);
    refusal.request_id = std::move(error->request_id);
    refusal.region = std::move(error->region);
  }
  const auto type = reply.find("Content-Type");
  refusal.is_page = type && type->starts_with("text/") && !reply.text.empty();
  if (const auto date = reply.find("Date")) refusal.date = parse_http_date(*date);
  refusal.retry_after = find_retry_after(reply);
  if (const auto region = reply.find("x-amz-bucket-region")) refusal.region = *region;
  if (const auto id = reply.find("x-amz-request-id")) refusal.request_id = *id;
  return refusal;
}

Error to_error(const S3Refusal& refusal, const S3Address& address, std::string_view action,
               std::string_view key, std::string_view access_key_id,
               std::string_view credentials_source) {
  const Verdict verdict = judge({refusal, address, action, key, access_key_id, credentials_source});
  if (verdict.code == ErrorCode::not_found) {
    return {verdict.code, fmt::format("bucket {}: object {} does not exist", address.url, key)};
  }
  std::string text =
      fmt::format("bucket {}: cannot {} object {}: {}", address.url, action, key, refusal.status);
  if (!refusal.code.empty()) text += " " + printable(refusal.code);
  if (!verdict.advice.empty()) {
    text += ": " + verdict.advice;
  } else if (!refusal.message.empty()) {
    text += ": " + printable(refusal.message);
  }
  if (!refusal.request_id.empty())
    text += fmt::format(" (request {})", printable(refusal.request_id));
  return {verdict.code, text};
}

}  // namespace weightfs
