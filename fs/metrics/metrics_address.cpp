#include "fs/metrics/metrics_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <array>

#include "fs/base/parse_values.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"

namespace weightfs::fs {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

[[noreturn]] void refuse_address(std::string_view text) {
  throw Error(ErrorCode::invalid,
              fmt::format("'{}' is not an address for metrics: give 127.0.0.1:9090, [::1]:9090 or "
                          "unix:/path/of/a/socket",
                          escape_name(text)));
}

bool is_ip(int family, const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return inet_pton(family, text.c_str(), bytes.data()) == 1;
}

}  // namespace

MetricsAddress parse_metrics_address(std::string_view text) {
  MetricsAddress address;
  if (text.starts_with(kUnixPrefix)) {
    const std::string path(text.substr(kUnixPrefix.size()));
    if (path.empty() || path.ends_with('/') || path.find('\0') != std::string::npos) {
      refuse_address(text);
    }
    address.socket = std::filesystem::absolute(path);
    return address;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse_address(text);
  address.ip = text.substr(0, colon);
  address.is_ipv6 = address.ip.starts_with('[') && address.ip.ends_with(']');
  if (address.is_ipv6) address.ip = address.ip.substr(1, address.ip.size() - 2);
  if (!is_ip(address.is_ipv6 ? AF_INET6 : AF_INET, address.ip)) refuse_address(text);
  try {
    address.port = static_cast<std::uint16_t>(parse_number(text.substr(colon + 1), {0, 65535}));
  } catch (const Error&) {
    refuse_address(text);
  }
  return address;
}

std::string to_string(const MetricsAddress& address) {
  if (!address.socket.empty()) return std::string(kUnixPrefix) + address.socket.string();
  return fmt::format(fmt::runtime(address.is_ipv6 ? "[{}]:{}" : "{}:{}"), address.ip, address.port);
}

}  // namespace weightfs::fs
