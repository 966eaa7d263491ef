// AwsConfig: the files ~/.aws/config and ~/.aws/credentials, read as the AWS tools read them.
//
//     [default]                         of both files            [profile x]  config: the profile x
//     region = us-east-1                                         [x]          credentials: the same
//     s3 =                                                       [services x] config: endpoints, of
//       addressing_style = path        "s3.addressing_style"                  services = x
//
// Lines that begin with '#' or ';' are comments; names are in any case; a line that is indented
// deeper than its setting goes on with it.  Source: botocore's configloader over Python's
// RawConfigParser; tests/s3/credentials_botocore_test.py compares.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/s3_settings.hpp"

namespace weightfs {

using AwsSettings = std::map<std::string, std::string>;      // by names in lower case
using AwsSections = std::map<std::string, AwsSettings>;      // by what stands in [ ]
inline constexpr std::uint64_t kAwsFileBytesMax = 4u << 20;  // of one file

/// The sections of a text.  Throws Error: invalid, naming `path` and the line, never its content.
AwsSections parse_aws_file(std::string_view text, const std::string& path);

/// Both files.  The keys of a profile must be told apart by the file they are in.
struct AwsFiles {
  std::string config_path, credentials_path;  // empty without HOME
  AwsSections config, services, credentials;  // by name, without "profile" and "services"

  [[nodiscard]] bool has(const std::string& profile) const;
  /// Of both files; that of credentials where both have a setting.
  [[nodiscard]] AwsSettings profile(const std::string& name) const;
  [[nodiscard]] std::string describe() const;  // "~/.aws/config and ~/.aws/credentials"
};

/// AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, or those below HOME; one that is not there is
/// empty.  Throws Error: invalid, permission.
AwsFiles read_aws_files(const Environment& environment);

/// The endpoint of a service ("s3") that is set for it: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the
/// profile's; empty if there is none, or AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true.
std::string find_configured_endpoint(std::string_view service, const AwsProfile& profile,
                                     const Environment& environment);

/// Whether a switch is on: "true" in any case, as the AWS tools have it.
bool is_on(const std::optional<std::string>& value);

}  // namespace weightfs
