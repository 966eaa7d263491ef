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
// the profile's settings) are refused unless an endpoint is named: nothing is left out silently.
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
/// Nested settings have the name "s3.addressing_style"; those of the section that `services` names
/// "services.s3.endpoint_url".
struct AwsProfile {
  std::string name;
  std::map<std::string, std::string> settings;
  std::string files;  // that were read, for messages
  [[nodiscard]] std::optional<std::string> find(std::string_view setting) const;
};

/// Reads a profile; one that is not there is empty if it is "default" and nobody named it.
/// Throws Error: not_found (a profile that was named; a services section), invalid (a file that is
/// not INI, with its line), permission (a file that cannot be read).
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
  bool profile_named = false;  // by --profile: keys in the environment do not count
};

/// A URL of a service, in its parts.
struct ServiceUrl {
  std::string scheme_and_host;  // "https://host[:port]", in lower case
  std::string host;             // without port; IPv6 without brackets
  std::string path;             // "" or "/x", without '/' at its end; still encoded
  [[nodiscard]] bool is_plain() const noexcept { return scheme_and_host.starts_with("http:"); }
};

/// `what` names it in messages: "--endpoint-url".  Throws Error: invalid (no http or https URL,
/// user:password@, a query or fragment, spaces).
ServiceUrl parse_service_url(const std::string& url, std::string_view what);

/// Throws Error: invalid (an endpoint that is no URL, AWS_MAX_ATTEMPTS, addressing_style),
/// unsupported (FIPS and the like), and what read_aws_profile throws.
S3Settings find_s3_settings(const BucketOptions& options, const Environment& environment);

}  // namespace weightfs
