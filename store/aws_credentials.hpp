// AwsCredentialChain: keys as the AWS tools find them, refreshed before they expire.
//
//     environment      AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (not if
//     --profile was given) profile          static keys; credential_process; role_arn with
//     source_profile, credential_source
//                      or web_identity_token_file (an STS call)
//     web identity     AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN: unsigned STS
//     AssumeRoleWithWebIdentity container        AWS_CONTAINER_CREDENTIALS_{RELATIVE,FULL}_URI,
//     AWS_CONTAINER_AUTHORIZATION_TOKEN[_FILE] instance         IMDSv2 at 169.254.169.254
//     (AWS_EC2_METADATA_SERVICE_ENDPOINT), 1 s, two tries;
//                      off with AWS_EC2_METADATA_DISABLED=true
//
// A source that is configured and fails is an error that names it: the next one is not tried in its
// place.  Secrets never reach messages, logs, argv or core files of ours.
//
// Threads: all calls may run in parallel; one of them fetches, the others wait or use what is still
// valid.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "store/context.hpp"
#include "store/http.hpp"
#include "store/s3_settings.hpp"
#include "store/sigv4.hpp"

namespace weightfs {

class AwsCredentialChain {
 public:
  AwsCredentialChain(S3Settings settings, Environment environment);
  ~AwsCredentialChain();

  /// Keys that are valid for some minutes more; fetched anew 5 minutes before they expire.
  /// Throws Error: permission ("no AWS credentials were found: looked at ...; set AWS_ACCESS_KEY_ID
  /// ..."), invalid (half of a pair, a malformed file or answer), unavailable (an endpoint that
  /// does not answer, while nothing valid is held), timed_out, cancelled.
  AwsCredentials get(const Context& context);

  /// The store refused these as expired or unknown: the next get() fetches, and reads files anew,
  /// unless others have come since.
  void refused(const AwsCredentials& credentials);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs
