// AwsSts: keys for a role, from AWS's Security Token Service.
//
// Source: docs.aws.amazon.com/STS/latest/APIReference, AssumeRole and AssumeRoleWithWebIdentity.
// Threads: calls may run in parallel.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "store/aws/sigv4.hpp"
#include "store/base/context.hpp"
#include "store/http/client.hpp"
#include "store/http/service_url.hpp"

namespace weightfs {

struct RoleRequest {
  std::string role_arn;
  std::string session_name;                   // empty: one is made
  std::string external_id, duration_seconds;  // empty: left out
  std::string source;                         // names the role's origin: "profile 'x'"
};

class AwsSts {
 public:
  /// `endpoint`: of the service; empty: AWS's own of the region.  Throws Error: invalid.
  AwsSts(const std::string& endpoint, std::string region, const std::string& ca_bundle);

  /// Both throw Error: permission (STS refuses), unavailable (also if `with` or `token` has
  /// expired), invalid (a malformed answer), cancelled, timed_out.
  AwsCredentials assume_role(const RoleRequest& role, const AwsCredentials& with,
                             const Context& context);
  AwsCredentials assume_role_with_token(const RoleRequest& role, const std::string& token,
                                        const Context& context);

 private:
  AwsCredentials ask(const std::string& form, const AwsCredentials* with, const RoleRequest& role,
                     const Context& context);

  const std::string region_;
  const ServiceUrl endpoint_;
  const Signer signer_;
  HttpClient client_;
};

}  // namespace weightfs
