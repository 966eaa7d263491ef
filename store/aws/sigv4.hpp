// SigV4: signs requests to S3 and STS as AWS Signature Version 4 has it.
//
// Source: docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html; held
// to the published examples and to botocore in tests/store/aws/sigv4_test.cpp and tests/s3.
//
// Threads: Signer::sign may run in parallel.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/http/client.hpp"

namespace weightfs {

/// Keys of one identity.  Never logged; messages show access_key_id by its last four characters.
struct AwsCredentials {
  std::string access_key_id, secret_access_key;
  std::string session_token;  // may be empty
  std::chrono::system_clock::time_point expires =
      std::chrono::system_clock::time_point::max();  // max(): never
  std::string source;  // where it was found, for messages: "environment", "profile x of FILE"
};

/// A request's target before it is encoded.
struct HttpTarget {
  std::string scheme_and_host;  // "https://host[:port]"
  std::string path;             // plain, from '/' on; encoded once, never normalised
  std::vector<std::pair<std::string, std::string>> query;  // plain; encoded and sorted

  [[nodiscard]] std::string url() const;
};

/// Percent-encodes all but A-Z a-z 0-9 - . _ ~ (and '/' if `keep_slash`).
std::string uri_encode(std::string_view text, bool keep_slash);

/// The value of x-amz-content-sha256 for a request without a body.
inline constexpr std::string_view kEmptySha256 =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class Signer {
 public:
  Signer(std::string region, std::string service)
      : region_(std::move(region)), service_(std::move(service)) {}

  /// Sets request.url from `target` and adds Host, x-amz-date, x-amz-content-sha256,
  /// x-amz-security-token and Authorization; those of an earlier signature go.  Signs every header
  /// that the request has already, but those that a proxy may change (User-Agent, Expect,
  /// Connection, Transfer-Encoding, X-Amzn-Trace-Id).
  /// Requires: target.scheme_and_host has a scheme.
  void sign(HttpRequest& request, const HttpTarget& target, std::string_view body_sha256_hex,
            const AwsCredentials& credentials, std::chrono::system_clock::time_point now) const;

 private:
  [[nodiscard]] std::string key_of(const std::string& day, const std::string& secret) const;

  const std::string region_, service_;
  // Guards the key of a day, which costs four HMACs.
  mutable RankedMutex mutex_{LockRank::leaf, "Signer::mutex_"};
  mutable std::string key_of_, key_;
};

}  // namespace weightfs
