// AwsCredentialChain: keys as the AWS tools find them, refreshed before they expire.
//
//     environment   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
//                   AWS_CREDENTIAL_EXPIRATION (not if --profile was given)
//     profile       role_arn with source_profile or credential_source (an STS call); else a token
//                   file: AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, or
//                   web_identity_token_file (an unsigned STS call); else keys of the credentials
//                   file, credential_process, keys of the config file
//     container     AWS_CONTAINER_CREDENTIALS_{RELATIVE,FULL}_URI (store/aws/endpoints.hpp)
//     instance      IMDSv2 (store/aws/endpoints.hpp)
//
// SSO and MFA profiles are refused by name.  If a configured source fails, that is an error that
// names it: the next one is not tried instead.  Secrets never reach messages, logs, argv or core
// files of ours (store/os/core_dumps.hpp: memory is left out of core files, process-wide, from the
// first chain on).
//
// Threads: all calls may run in parallel; one of them fetches, the others wait or use what is still
// valid.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "store/aws/config.hpp"
#include "store/aws/sigv4.hpp"
#include "store/base/context.hpp"
#include "store/http/client.hpp"

namespace weightfs {

[[nodiscard]] bool same_keys(const AwsCredentials& a, const AwsCredentials& b);

class AwsCredentialChain {
 public:
  AwsCredentialChain(AwsIdentity identity, Environment environment);
  ~AwsCredentialChain();

  /// Keys that are valid now; fetched anew 5 minutes before they expire (half way, if they live
  /// shorter than 10).  A fetch that fails while they are valid is logged, once, and tried again
  /// after 30 s at most.
  /// Throws Error: permission ("no AWS credentials found; looked in ...; set AWS_ACCESS_KEY_ID
  /// ..."), invalid (half of a pair, a malformed file or answer), unsupported (SSO, MFA),
  /// unavailable (a source does not answer, or gives keys that have expired, or none though it gave
  /// some before, and there are no valid keys; the same words where the instance's metadata give no
  /// answer; a file that a source names is missing), timed_out, cancelled; never not_found, which
  /// means an object of the bucket.
  AwsCredentials get(const Context& context);

  /// The service refused these as expired or unknown: the next get() fetches keys and reads
  /// files anew, unless there are newer keys by then.
  void refused(const AwsCredentials& credentials);

  /// The service refuses a signature: of a secret that was changed, or for another reason.  The
  /// sources are asked at the next get(), at most once in 3 s, and all others wait for what they
  /// say; without an answer these stay.
  void doubted(const AwsCredentials& credentials);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs
