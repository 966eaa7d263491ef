#include "store/aws/sources.hpp"

#include <algorithm>

#include "store/aws/answers.hpp"
#include "store/aws/process.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kTokenFileBytesMax = 1u << 20;

// A setting of the profile; an empty one counts as unset.
std::optional<std::string> find_in(const AwsSettings& profile, const std::string& name) {
  const auto found = profile.find(name);
  if (found == profile.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::string profile_text(const std::string& name) { return "profile '" + name + "'"; }

bool has_static_keys(const AwsSettings& profile) {
  return profile.contains("aws_access_key_id") || profile.contains("aws_secret_access_key");
}

bool is_role(const AwsSettings& profile) {
  return profile.contains("role_arn") && !profile.contains("web_identity_token_file");
}

// The pair of keys in one file.
std::optional<AwsCredentials> static_keys(const AwsSections& sections, const std::string& name,
                                          const std::string& path) {
  const auto profile = sections.find(name);
  if (profile == sections.end() || !has_static_keys(profile->second)) return std::nullopt;
  const auto id = find_in(profile->second, "aws_access_key_id");
  const auto secret = find_in(profile->second, "aws_secret_access_key");
  AwsCredentials keys;
  keys.source = profile_text(name) + " of " + path;
  if (!id || !secret) {
    throw Error(ErrorCode::invalid, keys.source + " has only half of a key pair: " +
                                        (id ? "aws_secret_access_key" : "aws_access_key_id") +
                                        " is missing");
  }
  keys.access_key_id = *id;
  keys.secret_access_key = *secret;
  const auto token = find_in(profile->second, "aws_session_token");
  keys.session_token = token ? *token : find_in(profile->second, "aws_security_token").value_or("");
  return keys;
}

void refuse_sso(const std::string& name, const AwsSettings& profile) {
  for (const char* setting : {"sso_session", "sso_start_url", "sso_account_id", "sso_role_name"}) {
    if (!profile.contains(setting)) continue;
    throw Error(ErrorCode::unsupported,
                profile_text(name) + " signs in by SSO (" + setting +
                    "), which only the AWS CLI can do: use a profile with credential_process = aws "
                    "configure export-credentials --profile " +
                    name + " --format process");
  }
}

RoleRequest role_of(const std::string& name, const AwsSettings& profile) {
  RoleRequest role;
  role.source = profile_text(name);
  role.role_arn = find_in(profile, "role_arn").value_or("");
  role.session_name = find_in(profile, "role_session_name").value_or("");
  role.external_id = find_in(profile, "external_id").value_or("");
  role.duration_seconds = find_in(profile, "duration_seconds").value_or("");
  if (role.duration_seconds.find_first_not_of("0123456789") != std::string::npos) {
    throw Error(ErrorCode::invalid, role.source + ": duration_seconds is '" +
                                        role.duration_seconds + "': expected a number");
  }
  return role;
}

std::string read_identity_token(const std::string& path, const std::string& source) {
  std::string token;
  try {
    token = read_file(path, kTokenFileBytesMax);
  } catch (const Error& error) {
    throw Error(error.within(source + ": its web identity token"));
  }
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) {
    token.pop_back();
  }
  if (!token.empty()) return token;
  throw Error(ErrorCode::invalid, source + ": its web identity token " + path + " is empty");
}

// A host that may have keys later starts without its bucket; one that has none needs a person.
ErrorCode code_of_none(const NoInstanceKeys& none) {
  return none.may_pass ? ErrorCode::unavailable : ErrorCode::permission;
}

}  // namespace

AwsSources::AwsSources(AwsIdentity identity, Environment environment)
    : identity_(std::move(identity)),
      environment_(std::move(environment)),
      container_(environment_),
      instance_(identity_.profile, environment_) {}

AwsCredentials AwsSources::fetch(const Context& context) {
  if (!identity_.profile_named) {
    if (const Found keys = from_environment()) return *keys;
  }
  if (const Found keys = from_own_profile(context)) return *keys;
  if (const Found keys = container_.find(context)) return *keys;
  NoInstanceKeys none;
  if (const Found keys = instance_.find(context, none)) return *keys;
  throw_none(none);
}

AwsSources::Found AwsSources::from_environment() const {
  const auto id = environment_("AWS_ACCESS_KEY_ID");
  const auto secret = environment_("AWS_SECRET_ACCESS_KEY");
  if (!id && !secret) return std::nullopt;
  if (!id || !secret) {
    throw Error(ErrorCode::invalid,
                std::string("the environment has only half of an AWS key pair: ") +
                    (id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID") + " is not set");
  }
  AwsCredentials keys;
  keys.source = "environment";
  keys.access_key_id = *id;
  keys.secret_access_key = *secret;
  const auto token = environment_("AWS_SESSION_TOKEN");
  keys.session_token = token ? *token : environment_("AWS_SECURITY_TOKEN").value_or("");
  if (const auto expires = environment_("AWS_CREDENTIAL_EXPIRATION")) {
    keys.expires = get_iso_time(*expires, "AWS_CREDENTIAL_EXPIRATION");
  }
  return keys;
}

// Whoever renews keys may have written half a file by now: a profile that gave keys will give them
// again.  Those of the container or the instance would have other rights, for hours.
AwsSources::Found AwsSources::from_own_profile(const Context& context) {
  const std::string& name = identity_.profile.name;
  Found keys;
  try {
    files_ = read_aws_files(environment_);
    visited_ = {name};
    keys = from_profile(name, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid || !profile_gave_keys_) throw;
    throw Error(ErrorCode::unavailable, error.what());
  }
  if (!keys && profile_gave_keys_) {
    throw Error(ErrorCode::unavailable, profile_text(name) + " of " + files_.describe() +
                                            " gave keys before and has none now");
  }
  profile_gave_keys_ = keys.has_value();
  return keys;
}

// The order of botocore: a role, a token file, SSO, keys of the credentials file, a process, keys
// of the config file.  For a profile that a role names as its source, its own keys come before its
// role.
AwsSources::Found AwsSources::from_profile(const std::string& name, const Context& context) {
  const AwsSettings profile = files_.profile(name);
  const bool is_first = visited_.size() == 1;
  if (is_role(profile) && (is_first || !has_static_keys(profile))) {
    return from_role(name, profile, context);
  }
  if (const Found keys = from_token_file(name, profile, context)) return keys;
  if (profile.contains("sso_account_id") || profile.contains("sso_role_name")) {
    refuse_sso(name, profile);
  }
  if (Found keys = static_keys(files_.credentials, name, files_.credentials_path)) return keys;
  if (const auto command = find_in(profile, "credential_process")) {
    return run_credential_process(*command, profile_text(name), context);
  }
  if (Found keys = static_keys(files_.config, name, files_.config_path)) return keys;
  refuse_sso(name, profile);
  return std::nullopt;
}

AwsSources::Found AwsSources::from_role(const std::string& name, const AwsSettings& profile,
                                        const Context& context) {
  if (find_in(profile, "mfa_serial")) {
    throw Error(
        ErrorCode::unsupported,
        profile_text(name) +
            " needs an MFA code (mfa_serial), which cannot be entered here: use a profile with "
            "credential_process = aws configure export-credentials --profile " +
            name + " --format process");
  }
  const RoleRequest role = role_of(name, profile);
  const Found source = from_role_source(name, profile, context);
  return sts().assume_role(role, *source, context);
}

AwsSources::Found AwsSources::from_role_source(const std::string& name, const AwsSettings& profile,
                                               const Context& context) {
  const auto by_profile = find_in(profile, "source_profile");
  const auto by_source = find_in(profile, "credential_source");
  if (by_profile.has_value() == by_source.has_value()) {
    throw Error(ErrorCode::invalid, profile_text(name) +
                                        " has a role_arn: expected either "
                                        "source_profile or credential_source beside it, found " +
                                        (by_profile ? "both" : "none"));
  }
  if (by_profile) return from_source_profile(name, *by_profile, context);
  return from_credential_source(name, *by_source, context);
}

AwsCredentials AwsSources::from_source_profile(const std::string& name, const std::string& source,
                                               const Context& context) {
  if (!files_.has(source)) {
    throw Error(ErrorCode::invalid, profile_text(name) + ": its source_profile '" + source +
                                        "' is not in " + files_.describe());
  }
  const bool was_there = std::find(visited_.begin(), visited_.end(), source) != visited_.end();
  const bool is_own_source = source == name && has_static_keys(files_.profile(source));
  if (was_there && !is_own_source) {
    std::string chain;
    for (const std::string& one : visited_) chain += one + " -> ";
    throw Error(ErrorCode::invalid,
                "the AWS profiles form a cycle through source_profile: " + chain + source);
  }
  visited_.push_back(source);
  const Found keys = from_profile(source, context);
  if (keys) return *keys;
  throw Error(ErrorCode::invalid, profile_text(name) + ": its source_profile '" + source +
                                      "' has no keys, role or credential_process");
}

AwsCredentials AwsSources::from_credential_source(const std::string& name,
                                                  const std::string& source,
                                                  const Context& context) {
  Found keys;
  NoInstanceKeys none{"not configured"};
  if (source == "Environment") {
    keys = from_environment();
  } else if (source == "EcsContainer") {
    keys = container_.find(context);
  } else if (source == "Ec2InstanceMetadata") {
    keys = instance_.find(context, none);
  } else {
    throw Error(ErrorCode::invalid,
                profile_text(name) + ": credential_source is '" + source +
                    "': expected Environment, EcsContainer or Ec2InstanceMetadata");
  }
  if (keys) return *keys;
  throw Error(code_of_none(none), profile_text(name) + ": its credential_source " + source +
                                      " gives no AWS credentials: " + none.why);
}

// Each setting by the variable or, without it, by the profile; the variables count only for the
// profile in use, and not if --profile named it.
AwsSources::Found AwsSources::from_token_file(const std::string& name, const AwsSettings& profile,
                                              const Context& context) {
  const bool by_variables = visited_.size() == 1 && !identity_.profile_named;
  const auto find = [&](std::string_view variable, const std::string& setting) {
    auto value = by_variables ? environment_(variable) : std::nullopt;
    return value ? value : find_in(profile, setting);
  };
  const auto path = find("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
  if (!path) return std::nullopt;
  RoleRequest role = role_of(name, profile);
  role.duration_seconds.clear();  // like botocore
  role.external_id.clear();
  role.source =
      find_in(profile, "web_identity_token_file") == path ? profile_text(name) : "web identity";
  const auto arn = find("AWS_ROLE_ARN", "role_arn");
  if (!arn) {
    throw Error(ErrorCode::invalid, role.source +
                                        ": a web identity token without a role: set "
                                        "AWS_ROLE_ARN, or role_arn in the profile");
  }
  role.role_arn = *arn;
  role.session_name = find("AWS_ROLE_SESSION_NAME", "role_session_name").value_or("");
  const std::string token = read_identity_token(*path, role.source);
  return sts().assume_role_with_token(role, token, context);
}

AwsSts& AwsSources::sts() {
  if (!sts_) {
    sts_ =
        std::make_unique<AwsSts>(find_configured_endpoint("sts", identity_.profile, environment_),
                                 identity_.region, identity_.ca_bundle);
  }
  return *sts_;
}

void AwsSources::throw_none(const NoInstanceKeys& none) const {
  std::string looked = identity_.profile_named ? ""
                                               : "the environment (AWS_ACCESS_KEY_ID, "
                                                 "AWS_WEB_IDENTITY_TOKEN_FILE), ";
  looked += profile_text(identity_.profile.name) + " of " + files_.describe() +
            ", the container (AWS_CONTAINER_CREDENTIALS_*), instance metadata (" + none.why + ")";
  throw Error(
      code_of_none(none),
      "no AWS credentials found; looked in " + looked +
          "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give a profile with --profile, "
          "or use --no-sign-request for a public bucket");
}

}  // namespace weightfs
