#include "store/s3_settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "store/aws_config.hpp"
#include "store/error.hpp"
#include "store/log.hpp"

namespace weightfs {
namespace {

constexpr unsigned kAttemptsMax = 100;

std::optional<std::string> first_of(const Environment& environment,
                                    std::initializer_list<std::string_view> variables) {
  for (const std::string_view variable : variables) {
    if (auto value = environment(variable)) return value;
  }
  return std::nullopt;
}

// A variable of the environment, else the profile's setting; an empty one counts as unset.
std::optional<std::string> find_setting(const Environment& environment, std::string_view variable,
                                        const AwsProfile& profile, std::string_view setting) {
  auto value = environment(variable);
  if (!value) value = profile.find(setting);
  if (value && value->empty()) return std::nullopt;
  return value;
}

unsigned parse_attempts(const std::string& text) {
  unsigned attempts = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), attempts);
  if (error != std::errc() || end != text.data() + text.size() || attempts == 0 ||
      attempts > kAttemptsMax) {
    throw Error(ErrorCode::invalid, "AWS_MAX_ATTEMPTS (max_attempts of a profile) is '" + text +
                                        "': expected a number from 1 to " +
                                        std::to_string(kAttemptsMax));
  }
  return attempts;
}

// What would send requests to another host of AWS than ours.
void refuse_other_endpoints(const AwsProfile& profile, const Environment& environment) {
  struct Switch {
    std::string_view variable, setting, what;
  };
  static constexpr Switch kSwitches[] = {
      {"AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint", "FIPS"},
      {"AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint", "dual-stack"},
      {"", "s3.use_dualstack_endpoint", "dual-stack"},
      {"", "s3.use_accelerate_endpoint", "accelerated"}};
  for (const Switch& one : kSwitches) {
    const auto by_variable = one.variable.empty() ? std::nullopt : environment(one.variable);
    if (!is_on(by_variable ? by_variable : profile.find(one.setting))) continue;
    const std::string name = by_variable
                                 ? std::string(one.variable)
                                 : std::string(one.setting) + " of profile '" + profile.name + "'";
    throw Error(ErrorCode::unsupported, name + " is true, but the " + std::string(one.what) +
                                            " endpoint of a region is not known here: name it with "
                                            "--endpoint-url, or set it to false");
  }
}

bool is_path_style(const S3Settings& settings) {
  const std::string style = settings.profile.find("s3.addressing_style").value_or("");
  if (style == "virtual" && !settings.endpoint.empty()) {
    log_warning("profile '" + settings.profile.name +
                "': s3 addressing_style = virtual is not followed at " + settings.endpoint +
                ": requests name the bucket in the path");
  }
  if (style.empty() || style == "auto" || style == "virtual") return false;
  if (style == "path") return true;
  throw Error(ErrorCode::invalid, "profile '" + settings.profile.name +
                                      "': s3 addressing_style is '" + style +
                                      "': expected auto, path or virtual");
}

void find_endpoint(const BucketOptions& options, const Environment& environment,
                   S3Settings& settings) {
  const bool by_flag = !options.endpoint_url.empty();
  const std::string url = by_flag ? options.endpoint_url
                                  : find_configured_endpoint("s3", settings.profile, environment);
  if (url.empty()) {
    refuse_other_endpoints(settings.profile, environment);
    return;
  }
  const ServiceUrl endpoint =
      parse_service_url(url, by_flag ? "--endpoint-url" : "AWS_ENDPOINT_URL or endpoint_url");
  settings.endpoint = endpoint.scheme_and_host + endpoint.path;
  settings.http_allowed = endpoint.is_plain();
}

[[noreturn]] void refuse_url(const std::string& url, std::string_view what,
                             const std::string& problem) {
  // What stands before an '@' may be a password, what stands behind a '?' a token.
  const std::string whole = url.substr(0, url.find('?'));
  const std::size_t at = whole.rfind('@');
  const std::string shown = at == std::string::npos ? whole : "..." + whole.substr(at);
  throw Error(ErrorCode::invalid, std::string(what) + ": '" + shown + "' " + problem);
}

// "host", "host:port", "[v6]", "[v6]:port".
std::string host_without_port(const std::string& url, std::string_view what,
                              const std::string& authority) {
  const bool is_v6 = authority.starts_with('[');
  const std::size_t end =
      is_v6 ? authority.find(']') + 1 : std::min(authority.find(':'), authority.size());
  const std::string host =
      is_v6 && end > 0 ? authority.substr(1, end - 2) : authority.substr(0, end);
  if (host.empty()) refuse_url(url, what, "names no host");
  if (end == authority.size()) return host;
  const char* const port = authority.data() + end + 1;
  unsigned number = 0;
  const auto [last, error] = std::from_chars(port, authority.data() + authority.size(), number);
  if (authority[end] != ':' || error != std::errc() || number == 0 || number > 65535 ||
      last != authority.data() + authority.size()) {
    refuse_url(url, what, "has no port from 1 to 65535 behind its ':'");
  }
  return host;
}

}  // namespace

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr || *value == 0) return std::nullopt;
    return value;
  };
}

std::optional<std::string> AwsProfile::find(std::string_view setting) const {
  const auto found = settings.find(std::string(setting));
  if (found == settings.end()) return std::nullopt;
  return found->second;
}

AwsProfile read_aws_profile(const std::string& name, bool named, const Environment& environment) {
  const AwsFiles files = read_aws_files(environment);
  AwsProfile profile{name, files.profile(name), files.describe()};
  if (named && !files.has(name)) {
    throw Error(ErrorCode::not_found,
                "the AWS profile '" + name + "' is not in " + profile.files +
                    ": see --profile and AWS_PROFILE (aws configure list-profiles names them)");
  }
  const auto services = profile.find("services");
  if (!services) return profile;
  const auto found = files.services.find(*services);
  if (found == files.services.end()) {
    throw Error(ErrorCode::not_found,
                "the AWS profile '" + name + "' says services = " + *services + ", but " +
                    files.config_path + " has no section [services " + *services + "]");
  }
  for (const auto& [setting, value] : found->second) {
    profile.settings["services." + setting] = value;
  }
  return profile;
}

ServiceUrl parse_service_url(const std::string& url, std::string_view what) {
  const std::size_t colon = url.find("://");
  std::string scheme = url.substr(0, std::min(colon, url.size()));
  const auto lower = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return text;
  };
  scheme = lower(scheme);
  if (colon == std::string::npos || (scheme != "https" && scheme != "http")) {
    refuse_url(url, what, "is not a URL: expected https://HOST or http://HOST");
  }
  for (const char c : url) {
    if (c <= ' ' || c == 0x7F || c == '\\') refuse_url(url, what, "has a space or '\\' in it");
  }
  if (url.find_first_of("?#") != std::string::npos) {
    refuse_url(url, what, "has a query or fragment: expected a host and a path at most");
  }
  const std::size_t path = std::min(url.find('/', colon + 3), url.size());
  const std::string authority = lower(url.substr(colon + 3, path - colon - 3));
  if (authority.find('@') != std::string::npos) {
    refuse_url(url, what, "names a user: keys come from the environment or a profile");
  }
  ServiceUrl parts{scheme + "://" + authority, host_without_port(url, what, authority),
                   url.substr(path)};
  while (parts.path.ends_with('/')) parts.path.pop_back();
  return parts;
}

S3Settings find_s3_settings(const BucketOptions& options, const Environment& environment) {
  S3Settings settings;
  settings.profile_named = !options.profile.empty();
  const auto by_variable = first_of(environment, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  const std::string name =
      settings.profile_named ? options.profile : by_variable.value_or("default");
  settings.profile =
      read_aws_profile(name, settings.profile_named || by_variable.has_value(), environment);

  settings.region = options.region;
  if (settings.region.empty()) {
    const auto region = first_of(environment, {"AWS_REGION", "AWS_DEFAULT_REGION"});
    settings.region = region ? *region : settings.profile.find("region").value_or("");
  }
  if (settings.region.empty()) settings.region = "us-east-1";
  find_endpoint(options, environment, settings);
  settings.path_style = options.path_style || is_path_style(settings);
  settings.sign = options.sign;
  settings.ca_bundle =
      find_setting(environment, "AWS_CA_BUNDLE", settings.profile, "ca_bundle").value_or("");
  const auto attempts =
      find_setting(environment, "AWS_MAX_ATTEMPTS", settings.profile, "max_attempts");
  if (attempts) settings.attempts_max = parse_attempts(*attempts);
  return settings;
}

}  // namespace weightfs
