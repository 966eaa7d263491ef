// For each socket /proc/net/tcp has "SL: ADDRESS:PORT REMOTE STATE ...", in hex.  Addresses are
// 32-bit words in the host's byte order.

#include "fs/hooks/listeners.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "fs/hooks/hook_options.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kListenState = "0A";

std::optional<std::uint32_t> parse_hex_word(std::string_view text) {
  std::uint32_t word = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), word, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return word;
}

/// 127.0.0.0/8, ::1 and ::ffff:127.0.0.0/104.
bool is_loopback_address(int family, const std::array<unsigned char, 16>& bytes) {
  if (family == AF_INET) return bytes[0] == 127;
  in6_addr address{};
  std::memcpy(&address, bytes.data(), bytes.size());
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && bytes[12] == 127);
}

/// "0100007F:1F90".
std::optional<Listener> parse_local(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return std::nullopt;
  const auto port = parse_hex_word(text.substr(colon + 1));
  std::array<unsigned char, 16> bytes{};
  for (std::size_t i = 0; i < colon; i += 8) {
    const auto word = parse_hex_word(text.substr(i, 8));
    if (!word) return std::nullopt;
    std::memcpy(bytes.data() + i / 2, &*word, sizeof *word);
  }
  if (!port || *port > 65535) return std::nullopt;
  const int family = colon == 8 ? AF_INET : AF_INET6;
  std::array<char, INET6_ADDRSTRLEN> shown{};
  inet_ntop(family, bytes.data(), shown.data(), shown.size());
  return Listener{shown.data(), static_cast<std::uint16_t>(*port),
                  is_loopback_address(family, bytes)};
}

/// Files in /proc report no size.
std::string read_proc(const char* path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::vector<Listener> parse_listeners(std::string_view text) {
  std::vector<Listener> listeners;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    if (!(words >> number >> local >> remote >> state) || state != kListenState) continue;
    if (auto listener = parse_local(local)) listeners.push_back(std::move(*listener));
  }
  return listeners;
}

std::vector<Listener> read_listeners() {
  std::vector<Listener> all = parse_listeners(read_proc("/proc/self/net/tcp"));
  std::vector<Listener> more = parse_listeners(read_proc("/proc/self/net/tcp6"));
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

bool is_loopback_host(std::string_view host) {
  const std::string text(host);
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) {
    return is_loopback_address(AF_INET, bytes);
  }
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) {
    return is_loopback_address(AF_INET6, bytes);
  }
  return host == "localhost" || host.ends_with(".localhost");
}

std::string exposure_of(std::string_view type, std::string_view url,
                        const std::vector<Listener>& listeners) {
  const UrlPlace place = place_of_url(url);
  const std::string what =
      std::string("whoever can reach it can replace its weights and run code there") +
      (type.starts_with("vllm") ? " (--api-key does not guard that)" : "");
  if (!is_loopback_host(place.host)) {
    return fmt::format(
        "the {} engine {} is not on this host's loopback: {}; run its mount beside it, with "
        "--host 127.0.0.1, and put a proxy in front that lets only the API through",
        type, url, what);
  }
  for (const Listener& listener : listeners) {
    if (listener.port != place.port || listener.is_loopback) continue;
    return fmt::format(
        "the {1} engine {2} listens on port {0} at {3}, beyond this host's loopback: {4}; "
        "start it with --host 127.0.0.1, and put a proxy in front that lets only the API "
        "through",
        place.port, type, url, listener.address, what);
  }
  return {};
}

}  // namespace weightfs::fs
