// S3Error: what a service's refusal means, and what to do about it.
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/error.hpp"
#include "store/http/client.hpp"
#include "store/s3/address.hpp"

namespace weightfs {

/// What is known of a reply that is not a success (or is a 200 with an <Error> body).
struct S3Refusal {
  int status = 0;
  std::string code, message;  // of the XML; empty if there is none (HEAD)
  std::string request_id;
  bool is_page = false;  // the body is text for people
  std::optional<std::chrono::seconds> retry_after;
  std::optional<std::chrono::system_clock::time_point> date;  // of the server
  std::string region;                                         // x-amz-bucket-region

  /// Worth the same request again: 408, 429, 500, 502, 503, 504, RequestTimeout, SlowDown,
  /// InternalError, 409 ConditionalRequestConflict, OperationAborted, a 200 with an <Error> body,
  /// is_foreign().
  [[nodiscard]] bool is_transient() const noexcept;
  [[nodiscard]] bool is_throttling() const noexcept;    // 503 SlowDown, 429: fewer connections
  [[nodiscard]] bool is_skewed_clock() const noexcept;  // RequestTimeTooSkewed and its kin
  [[nodiscard]] bool is_expired_token() const noexcept;
  [[nodiscard]] bool is_unknown_key() const noexcept { return code == "InvalidAccessKeyId"; }
  [[nodiscard]] bool is_wrong_signature() const noexcept { return code == "SignatureDoesNotMatch"; }
  [[nodiscard]] bool is_about_keys() const noexcept;  // others may be accepted
  /// A 404 that does not come from the service, which says a code, or at least the request's id,
  /// but has a page of text or HTML: an ingress answers so while no service is behind it.
  [[nodiscard]] bool is_foreign() const noexcept;
};

/// Reads a reply; never throws for bad XML.
S3Refusal read_refusal(const HttpReply& reply);

/// The Error for a refusal: permission, not_found, unavailable, invalid, ...; its message names the
/// bucket, the key, status and code, and says what to change.  `action` as in "read", "write",
/// "list".
Error to_error(const S3Refusal& refusal, const S3Address& address, std::string_view action,
               std::string_view key, std::string_view access_key_id,
               std::string_view credentials_source);

}  // namespace weightfs
