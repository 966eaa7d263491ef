// AwsSources: looks for AWS keys in all their sources, in the order of the AWS tools.  Does not
// cache keys: store/aws/credentials.hpp does.
//
// Source: botocore's create_credential_resolver; tests/s3/credentials_botocore_test.py compares.
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/aws/config.hpp"
#include "store/aws/endpoints.hpp"
#include "store/aws/sts.hpp"

namespace weightfs {

class AwsSources {
 public:
  AwsSources(AwsIdentity identity, Environment environment);

  /// Keys of the first configured source; rereads the files.
  /// Throws Error: permission (there are none, or it refuses), unavailable (there are none, but the
  /// instance did not say so, or the profile gave some before), and what the sources throw.
  AwsCredentials fetch(const Context& context);

 private:
  using Found = std::optional<AwsCredentials>;

  [[nodiscard]] Found from_environment() const;
  Found from_own_profile(const Context& context);
  Found from_profile(const std::string& name, const Context& context);
  Found from_role(const std::string& name, const AwsSettings& profile, const Context& context);
  Found from_role_source(const std::string& name, const AwsSettings& profile,
                         const Context& context);
  Found from_token_file(const std::string& name, const AwsSettings& profile,
                        const Context& context);
  AwsCredentials from_source_profile(const std::string& name, const std::string& source,
                                     const Context& context);
  AwsCredentials from_credential_source(const std::string& name, const std::string& source,
                                        const Context& context);
  [[noreturn]] void throw_none(const NoInstanceKeys& none) const;
  AwsSts& sts();

  const AwsIdentity identity_;
  const Environment environment_;
  AwsContainer container_;
  AwsInstance instance_;
  std::unique_ptr<AwsSts> sts_;  // made when it is needed
  AwsFiles files_;
  bool profile_gave_keys_ = false;    // the one of identity_
  std::vector<std::string> visited_;  // profiles of a chain of roles
};

}  // namespace weightfs
