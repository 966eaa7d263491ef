// S3Settings: endpoint, region and the rest, as the AWS tools find them.
//
//     endpoint    --endpoint-url, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's services
//                 section, its endpoint_url, the region's; the variables and the profile count
//                 unless AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true
//     region      --region, AWS_REGION, AWS_DEFAULT_REGION, the profile's region, us-east-1
//     profile     --profile, AWS_PROFILE, AWS_DEFAULT_PROFILE, "default"
//     others      AWS_CA_BUNDLE, AWS_MAX_ATTEMPTS and the profile's ca_bundle, max_attempts,
//                 s3 addressing_style
//
// FIPS, dual-stack and accelerated endpoints (AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT and
// the profile's settings) are refused unless an endpoint is given: no setting is silently ignored.
//
// Source: AWS SDKs and Tools Reference Guide.  Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "store/aws/config.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs {

struct S3Settings {
  std::string endpoint;  // "https://host[:port][/path]" without '/' at its end; empty: AWS's own of
                         // the region
  std::string region;
  bool path_style = false;
  bool sign = true;
  bool http_allowed = false;  // the endpoint was named as http://
  std::string ca_bundle;
  unsigned attempts_max = 10;
  AwsProfile profile;
  bool profile_named = false;  // by --profile: keys in the environment do not count

  /// What the search for credentials needs of these.
  [[nodiscard]] AwsIdentity identity() const { return {profile, profile_named, region, ca_bundle}; }
};

/// Throws Error: invalid (an endpoint that is not a URL, AWS_MAX_ATTEMPTS, addressing_style),
/// unsupported (FIPS and the like), and what read_aws_profile throws.
S3Settings find_s3_settings(const BucketOptions& options, const Environment& environment);

}  // namespace weightfs
