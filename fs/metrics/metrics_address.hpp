// Metrics address: where a daemon gives out its metrics.
//
//     127.0.0.1:9090    [::1]:9090    0.0.0.0:9090    127.0.0.1:0 (any free port)
//     unix:/run/weightfs/metrics
//
// No names: what a name means may change between two starts, and a look-up may hang.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace weightfs::fs {

struct MetricsAddress {
  std::filesystem::path socket;  // of a Unix socket, absolute; empty: TCP
  std::string ip;                // without brackets
  bool is_ipv6 = false;
  std::uint16_t port = 0;  // 0: any

  friend bool operator==(const MetricsAddress&, const MetricsAddress&) = default;
};

/// Throws Error: invalid, saying what was expected.
MetricsAddress parse_metrics_address(std::string_view text);

/// "127.0.0.1:9090", as parse_metrics_address() takes it.
std::string to_string(const MetricsAddress& address);

}  // namespace weightfs::fs
