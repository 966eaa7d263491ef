// Listeners: which TCP sockets of this host (of this network namespace) are listened on, and
// whether an engine's development endpoints can be reached from elsewhere.
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

/// Parses the text of /proc/net/tcp or tcp6; lines it does not understand are left out.
std::vector<Listener> parse_listeners(std::string_view text);

/// All of this host; empty where /proc does not say.
std::vector<Listener> read_listeners();

/// Whether "localhost", or an address, means this host alone.
bool is_loopback_host(std::string_view host);

/// Why the engine at `url` can be told other weights by others than this host, and what to do; ""
/// if it cannot.  `type`: of its hook.
std::string exposure_of(std::string_view type, std::string_view url,
                        const std::vector<Listener>& listeners);

}  // namespace weightfs::fs
