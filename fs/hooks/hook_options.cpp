#include "fs/hooks/hook_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "fs/base/parse_values.hpp"
#include "store/base/error.hpp"
#include "store/os/child_process.hpp"

namespace weightfs::fs {
namespace {

constexpr std::array kHookTypes{
    std::pair{HookType::vllm, std::string_view("vllm")},
    std::pair{HookType::vllm_lora, std::string_view("vllm-lora")},
    std::pair{HookType::sglang, std::string_view("sglang")},
    std::pair{HookType::http, std::string_view("http")},
    std::pair{HookType::exec, std::string_view("exec")},
};

[[noreturn]] void refuse_hook(const std::string& problem) {
  throw Error(ErrorCode::invalid, problem);
}

HookType parse_hook_type(std::string_view name) {
  for (const auto& [type, text] : kHookTypes) {
    if (text == name) return type;
  }
  refuse_hook(fmt::format(
      "'{}' is not a kind of hook; expected vllm=URL, sglang=URL, http=URL, exec=COMMAND "
      "or vllm-lora=URL,name=NAME",
      name));
}

/// The size of the scheme, including "://".
std::size_t scheme_size(std::string_view url) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (url.starts_with(scheme)) return scheme.size();
  }
  refuse_hook(fmt::format("'{}' is not the URL of an engine: expected http://HOST:PORT", url));
}

/// "HOST:PORT" of a URL.
std::string_view authority_of(std::string_view url) {
  const std::string_view rest = url.substr(scheme_size(url));
  return rest.substr(0, rest.find_first_of("/?#"));
}

void check_engine_url(std::string_view url) {
  for (const char c : url) {
    if (c <= ' ' || c == 0x7F)
      refuse_hook("an engine's URL must not have spaces or control characters");
  }
  if (authority_of(url).find('@') != std::string_view::npos) {
    refuse_hook(
        "an engine's URL must not have a password, since every user can see it; put a token "
        "into a file and use token-file=FILE");
  }
  place_of_url(url);
}

/// One for the three names that a server on this host's loopback is given.
std::string name_of_host(const std::string& host) {
  return host == "127.0.0.1" || host == "::1" ? "localhost" : host;
}

bool parse_kv(std::string_view text) {
  if (text == "keep" || text == "reset") return text == "keep";
  refuse_hook(fmt::format("'{}' is not one of reset and keep", text));
}

/// Of the keys that not every engine has.
std::string_view own_keys(HookType type) {
  if (type == HookType::vllm) return ", inplace and kv";
  return type == HookType::vllm_lora ? ", name, inplace and reset" : "";
}

void take_hook_key(HookOptions& spec, std::string_view pair) {
  const std::size_t equals = pair.find('=');
  const std::string_view key = pair.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
  const bool is_lora = spec.type == HookType::vllm_lora, is_vllm = spec.type == HookType::vllm;
  try {
    if (key == "every") {
      spec.every = parse_seconds(value);
    } else if (key == "timeout") {
      spec.timeout = parse_seconds(value);
    } else if (key == "token-file" && value.starts_with('/')) {
      spec.token_file = value;
    } else if (key == "token-file") {
      refuse_hook(fmt::format("'{}' is not an absolute path", value));
    } else if (key == "name" && is_lora && !value.empty()) {
      spec.name = value;
    } else if (key == "inplace" && (is_lora || is_vllm)) {
      spec.is_in_place = parse_switch(value);
    } else if (key == "kv" && is_vllm) {
      spec.keeps_running = parse_kv(value);
    } else if (key == "reset" && is_lora) {
      spec.is_reset = parse_switch(value);
    } else {
      refuse_hook(fmt::format("{} has no such key; the keys are every, timeout, token-file{}",
                              to_string(spec.type), own_keys(spec.type)));
    }
  } catch (const Error& error) {
    throw error.within(key);
  }
}

/// Parses "URL,key=value,...".
void take_engine(HookOptions& spec, std::string_view rest) {
  std::size_t end = std::min(rest.find(','), rest.size());
  spec.url = rest.substr(0, end);
  check_engine_url(spec.url);
  while (spec.url.ends_with('/')) spec.url.pop_back();
  while (end < rest.size()) {
    rest.remove_prefix(end + 1);
    end = std::min(rest.find(','), rest.size());
    take_hook_key(spec, rest.substr(0, end));
  }
  if (spec.type == HookType::vllm_lora && spec.name.empty()) {
    refuse_hook("vllm-lora needs the adapter's name: vllm-lora=URL,name=NAME");
  }
}

void take_command(HookOptions& spec, std::string_view command) {
  spec.argv = split_command(command);
  if (spec.argv.empty() || !spec.argv[0].starts_with('/')) {
    refuse_hook(
        "exec needs a command that begins with the absolute path of its program: neither a "
        "shell nor PATH is used");
  }
}

}  // namespace

std::string_view to_string(HookType type) noexcept {
  for (const auto& [known, text] : kHookTypes) {
    if (known == type) return text;
  }
  return "";
}

std::string HookOptions::shown_url() const { return url.substr(0, url.find_first_of("?#")); }

std::string HookOptions::target() const {
  if (type == HookType::exec) return argv[0];
  return type == HookType::vllm_lora ? fmt::format("{} ({})", shown_url(), name) : shown_url();
}

std::string HookOptions::identity() const {
  if (type == HookType::exec) return text;
  const std::string engine = fmt::format("{}={}", to_string(type), url);
  return name.empty() ? engine : fmt::format("{},name={}", engine, name);
}

std::string HookOptions::origin() const {
  if (type == HookType::exec) return text;
  const UrlPlace place = place_of_url(url);
  return fmt::format("{}{}:{}", url.substr(0, scheme_size(url)), name_of_host(place.host),
                     place.port);
}

HookOptions parse_hook(std::string_view text) {
  const std::size_t equals = text.find('=');
  HookOptions spec{.type = parse_hook_type(text.substr(0, equals)),
                   .text = std::string(text),
                   .url = {},
                   .argv = {},
                   .token_file = {},
                   .name = {}};
  const std::string_view rest =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  if (spec.type == HookType::exec) {
    take_command(spec, rest);
  } else {
    take_engine(spec, rest);
  }
  return spec;
}

UrlPlace place_of_url(std::string_view url) {
  const std::string_view authority = authority_of(url);
  const std::size_t bracket = authority.find(']');
  const std::size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  UrlPlace place{.host = std::string(authority.substr(0, colon)),
                 .port = static_cast<std::uint16_t>(url.starts_with("https") ? 443 : 80)};
  if (colon != std::string_view::npos) {
    place.port = static_cast<std::uint16_t>(parse_number(authority.substr(colon + 1), {1, 65535}));
  }
  if (place.host.starts_with('[') && place.host.ends_with(']')) {
    place.host = place.host.substr(1, place.host.size() - 2);
  }
  if (place.host.empty()) refuse_hook(fmt::format("the URL {} has no host", url));
  return place;
}

}  // namespace weightfs::fs
