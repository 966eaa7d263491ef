// AwsConfig: the files ~/.aws/config and ~/.aws/credentials, read as the AWS tools read them.
//
//     [default]                         of both files            [profile x]  config: the profile x
//     region = us-east-1                                         [x]          credentials: the same
//     s3 =                                                       [services x] config: endpoints, of
//       addressing_style = path        "s3.addressing_style"                  services = x
//
// Lines that begin with '#' or ';' are comments; names are case-insensitive; a line that is
// indented deeper than its setting continues it.  Source: botocore's configloader over Python's
// RawConfigParser; tests/s3/credentials_botocore_test.py compares.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs {

/// Looks up an environment variable; nullopt if it is unset or empty.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;
Environment process_environment();

using AwsSettings = std::map<std::string, std::string>;      // by names in lower case
using AwsSections = std::map<std::string, AwsSettings>;      // by the text in [ ]
inline constexpr std::uint64_t kAwsFileBytesMax = 4u << 20;  // of one file

/// The sections of a text.  Throws Error: invalid, naming `path` and the line, never its content.
AwsSections parse_aws_file(std::string_view text, const std::string& path);

/// Both files, kept apart because the source of a profile's keys matters.
struct AwsFiles {
  std::string config_path, credentials_path;  // empty without HOME
  AwsSections config, services, credentials;  // by name, without "profile" and "services"

  [[nodiscard]] bool has(const std::string& profile) const;
  /// Of both files; that of credentials where both have a setting.
  [[nodiscard]] AwsSettings profile(const std::string& name) const;
  [[nodiscard]] std::string describe() const;  // "~/.aws/config and ~/.aws/credentials"
};

/// AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, or those below HOME; a missing file is empty.
/// Throws Error: invalid, permission.
AwsFiles read_aws_files(const Environment& environment);

/// The settings of one profile: ~/.aws/config and ~/.aws/credentials merged (credentials win).
/// Nested settings have the name "s3.addressing_style"; those of the section that `services` names
/// "services.s3.endpoint_url".
struct AwsProfile {
  std::string name;
  std::map<std::string, std::string> settings;
  std::string files;  // that were read, for messages
  [[nodiscard]] std::optional<std::string> find(std::string_view setting) const;
};

/// Where keys are looked for, and how STS is reached.
struct AwsIdentity {
  AwsProfile profile;
  bool profile_named = false;  // by --profile: keys in the environment do not count
  std::string region;
  std::string ca_bundle;  // empty: the system's
};

/// Reads a profile; a missing one is empty if it is "default" and was not named.
/// Throws Error: invalid (no such profile, though it was named; no such services section; a file
/// that is not INI, with its line), permission (a file that cannot be read).
AwsProfile read_aws_profile(const std::string& name, bool named, const Environment& environment);

/// The endpoint of a service ("s3") that is set for it: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the
/// profile's; empty if there is none, or AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true.
std::string find_configured_endpoint(std::string_view service, const AwsProfile& profile,
                                     const Environment& environment);

/// Whether a switch is on: "true" in any case, as the AWS tools have it.
bool is_on(const std::optional<std::string>& value);

}  // namespace weightfs
