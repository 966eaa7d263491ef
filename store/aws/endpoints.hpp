// AwsEndpoints: keys from where the process runs: a container's agent, an instance's metadata.
//
//     container   AWS_CONTAINER_CREDENTIALS_RELATIVE_URI at 169.254.170.2, or ..._FULL_URI: https,
//                 or http to this host, 169.254.170.2, 169.254.170.23 or fd00:ec2::23; with
//                 AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE (read each time) or ..._TOKEN
//     instance    IMDSv2 alone at 169.254.169.254, AWS_EC2_METADATA_SERVICE_ENDPOINT or, with
//                 AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6, fd00:ec2::254; 1 s and two tries,
//                 or AWS_METADATA_SERVICE_TIMEOUT and AWS_METADATA_SERVICE_NUM_ATTEMPTS; off with
//                 AWS_EC2_METADATA_DISABLED=true
//
// Threads: one at a time.
#pragma once

#include <optional>
#include <string>

#include "store/aws/config.hpp"
#include "store/aws/sigv4.hpp"
#include "store/base/context.hpp"
#include "store/http/client.hpp"

namespace weightfs {

class AwsContainer {
 public:
  explicit AwsContainer(Environment environment) : environment_(std::move(environment)) {}

  /// nullopt: not configured.  Throws Error: invalid (a URI that keys must not come from),
  /// permission, unavailable (also for an answer without keys), cancelled, timed_out.
  std::optional<AwsCredentials> find(const Context& context);

 private:
  HttpReply ask(const HttpRequest& request, const Context& context);

  const Environment environment_;
  std::optional<HttpClient> client_;
};

/// Why an instance gives no keys.
struct NoInstanceKeys {
  std::string why;
  bool may_pass = false;  // no answer, one without keys, trouble: whether it has keys is unknown
};

class AwsInstance {
 public:
  AwsInstance(AwsProfile profile, Environment environment)
      : profile_(std::move(profile)), environment_(std::move(environment)) {}

  /// nullopt: there is none, or it has no role, or it did not say; `none` says which.  Expired
  /// keys, which it returns when AWS cannot renew them, are used for ten minutes.  Throws Error:
  /// unavailable (once it has returned keys), invalid (settings), cancelled, timed_out.
  std::optional<AwsCredentials> find(const Context& context, NoInstanceKeys& none);

 private:
  [[nodiscard]] std::string endpoint() const;
  [[nodiscard]] std::string setting(std::string_view variable, std::string_view name,
                                    std::string_view otherwise) const;
  /// `is_worth_it`: whether to ask again after such a reply.
  HttpReply ask(const HttpRequest& request, bool (*is_worth_it)(const HttpReply&),
                const Context& context);
  std::optional<AwsCredentials> ask_for_keys(const std::string& base, const Context& context,
                                             NoInstanceKeys& none);

  const AwsProfile profile_;
  const Environment environment_;
  std::optional<HttpClient> client_;
  unsigned attempts_ = 2;
  bool gave_keys_ = false;
};

}  // namespace weightfs
