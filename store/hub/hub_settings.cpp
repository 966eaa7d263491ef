#include "store/hub/hub_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "store/base/error.hpp"
#include "store/http/retry_loop.hpp"
#include "store/http/service_url.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kTokenFileBytesMax = 64u << 10;

/// What huggingface_hub takes for a switch that is on.
bool is_hub_switch_on(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

std::string without_space_around(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

/// Empty if there is no home directory.
std::string token_path(const Environment& environment) {
  if (const auto path = environment("HF_TOKEN_PATH")) return *path;
  if (const auto home = environment("HF_HOME")) return *home + "/token";
  if (const auto cache = environment("XDG_CACHE_HOME")) return *cache + "/huggingface/token";
  const auto home = environment("HOME");
  return home ? *home + "/.cache/huggingface/token" : "";
}

/// "~/x" with HOME, as in the variables of huggingface_hub.
std::string with_home(const std::string& path, const Environment& environment) {
  const auto home = environment("HOME");
  return path.starts_with("~/") && home ? *home + path.substr(1) : path;
}

}  // namespace

HubSettings find_hub_settings(const Environment& environment) {
  HubSettings settings;
  const ServiceUrl url = parse_service_url(
      environment("HF_ENDPOINT").value_or(std::string(kHubEndpoint)), "HF_ENDPOINT");
  settings.endpoint = url.scheme_and_host + url.path;
  for (const std::string_view name : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}) {
    if (settings.ca_bundle.empty()) settings.ca_bundle = environment(name).value_or("");
  }
  if (const auto attempts = environment("AWS_MAX_ATTEMPTS")) {
    settings.attempts_max = parse_attempts_max(*attempts, "AWS_MAX_ATTEMPTS");
  }
  return settings;
}

HubToken find_hub_token(const Environment& environment) {
  if (const auto off = environment("HF_HUB_DISABLE_IMPLICIT_TOKEN");
      off && is_hub_switch_on(*off)) {
    return {"", "HF_HUB_DISABLE_IMPLICIT_TOKEN"};
  }
  for (const std::string_view name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    std::string token = without_space_around(environment(name).value_or(""));
    if (!token.empty()) return {std::move(token), std::string(name)};
  }
  const std::string path = with_home(token_path(environment), environment);
  if (path.empty()) return {"", "HF_TOKEN"};
  try {
    return {without_space_around(read_file(path, kTokenFileBytesMax)), path};
  } catch (const Error& error) {  // a public model needs none
    return {"", error.code() == ErrorCode::not_found ? path : error.what()};
  }
}

}  // namespace weightfs
