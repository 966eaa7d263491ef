#include "store/s3/settings.hpp"

#include <algorithm>
#include <cstdlib>

#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/http/retry_loop.hpp"
#include "store/http/service_url.hpp"

namespace weightfs {
namespace {

std::optional<std::string> first_of(const Environment& environment,
                                    std::initializer_list<std::string_view> variables) {
  for (const std::string_view variable : variables) {
    if (auto value = environment(variable)) return value;
  }
  return std::nullopt;
}

// A variable of the environment, or else the profile's setting; an empty one counts as unset.
std::optional<std::string> find_setting(const Environment& environment, std::string_view variable,
                                        const AwsProfile& profile, std::string_view setting) {
  auto value = environment(variable);
  if (!value) value = profile.find(setting);
  if (value && value->empty()) return std::nullopt;
  return value;
}

// Rejects settings that would send requests to another AWS endpoint than the one used here.
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
    throw Error(
        ErrorCode::unsupported,
        name + " is true, but the " + std::string(one.what) +
            " endpoint of a region is not known to weightfs: give it with --endpoint-url, or set "
            "the option to false");
  }
}

bool is_path_style(const S3Settings& settings) {
  const std::string style = settings.profile.find("s3.addressing_style").value_or("");
  if (style == "virtual" && !settings.endpoint.empty()) {
    log_warning("profile '" + settings.profile.name +
                "': s3 addressing_style = virtual is ignored at " + settings.endpoint +
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

}  // namespace

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
  if (attempts)
    settings.attempts_max =
        parse_attempts_max(*attempts, "AWS_MAX_ATTEMPTS (max_attempts of a profile)");
  return settings;
}

}  // namespace weightfs
