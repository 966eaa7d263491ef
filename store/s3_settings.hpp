// S3Settings: endpoint, region and the rest, as the AWS tools find them.
//
//     endpoint   --endpoint-url, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's endpoint_url,
//     the region's region     --region, AWS_REGION, AWS_DEFAULT_REGION, the profile's region,
//     us-east-1 profile    --profile, AWS_PROFILE, AWS_DEFAULT_PROFILE, "default" others
//     AWS_CA_BUNDLE, AWS_MAX_ATTEMPTS, AWS_IGNORE_CONFIGURED_ENDPOINT_URLS, the profile's s3
//     addressing_style
//
// Source: AWS SDKs and Tools Reference Guide; notes/ecosystem.md, 4.  Threads: pure functions.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace weightfs {

/// What the command line says about a bucket; empty: as the AWS tools find it.
struct BucketOptions {
  std::string endpoint_url, region, profile;
  bool path_style = false;  // the bucket in the path also on amazonaws.com
  bool sign = true;         // false: --no-sign-request
};

/// Looks a variable of the environment up; nullopt if it is unset or empty.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;
Environment process_environment();

/// The settings of one profile: ~/.aws/config and ~/.aws/credentials merged (credentials win).
/// Nested settings have the name "s3.addressing_style".
struct AwsProfile {
  std::string name;
  std::map<std::string, std::string> settings;
  std::string files;  // that were read, for messages
  [[nodiscard]] std::optional<std::string> find(std::string_view setting) const;
};

/// Reads a profile; one that is not there is empty if it is "default" and nobody named it.
/// Throws Error: not_found (a profile that was named), invalid (a file that is not INI, with its
/// line).
AwsProfile read_aws_profile(const std::string& name, bool named, const Environment& environment);

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
  bool profile_named = false;
};

/// Throws Error: invalid (an endpoint that is no URL), not_found (the profile).
S3Settings find_s3_settings(const BucketOptions& options, const Environment& environment);

}  // namespace weightfs
