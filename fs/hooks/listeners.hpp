// Listeners: the listening TCP sockets of this host (of this network namespace), and whether an
// engine's development endpoints can be reached from elsewhere.
//
// Threads: pure functions of the system's state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

struct Listener {
  std::string address;  // "127.0.0.1", "0.0.0.0", "::"
  std::uint16_t port = 0;
  bool is_loopback = false;  // only this host can reach it

  friend bool operator==(const Listener&, const Listener&) = default;
};

/// Parses the text of /proc/net/tcp or tcp6; skips lines that it does not understand.
std::vector<Listener> parse_listeners(std::string_view text);

/// All listeners of this host; empty if /proc does not list them.
std::vector<Listener> read_listeners();

/// Whether the host is "localhost" or a loopback address.
bool is_loopback_host(std::string_view host);

/// Why others than this host can tell the engine at `url` to load other weights, and what to do
/// about it; "" if they cannot.  `type`: the hook's.
std::string exposure_of(std::string_view type, std::string_view url,
                        const std::vector<Listener>& listeners);

}  // namespace weightfs::fs
