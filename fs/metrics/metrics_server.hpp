// MetricsServer: gives out the metrics by HTTP: GET and HEAD of /metrics, and a hint at /.
//
// Who listens may be reached by anybody, so a client can cost little: one thread for all of them,
// kMetricsClientsMax of them, kMetricsAskTime for the whole request, kMetricsReplyTime for the
// whole answer, kMetricsRequestMax bytes.  If there are more clients, the oldest that has not asked
// is closed for the new one, so silent ones keep nobody out.  The text is made at most some times a
// second, however often it is asked for.  Each connection has one request; there is no
// authentication and no TLS (docs/OPERATIONS.md).
//
// Why no library: those of Debian 12 that serve Unix sockets measure the silence between two bytes
// and not the whole request, so that one client that sends a byte a second holds a thread.
//
// Threads: a MetricsServer has one thread, which calls `find_text`.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "fs/control/unix_listener.hpp"
#include "fs/metrics/metrics_address.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {

inline constexpr std::size_t kMetricsClientsMax = 32;
inline constexpr std::size_t kMetricsRequestMax = 8192;
inline constexpr std::chrono::seconds kMetricsAskTime{5};
inline constexpr std::chrono::seconds kMetricsReplyTime{10};
inline constexpr std::chrono::milliseconds kMetricsTextAge{250};

/// The listening socket.  Clients that connect before there is a server wait for it.
class MetricsListener {
 public:
  /// Throws Error: busy (the address is in use), permission, invalid (this host has no such
  /// address), not_found (the directory of a socket), what UnixListener throws; all name the
  /// address.
  explicit MetricsListener(const MetricsAddress& address);

  [[nodiscard]] int fd() const noexcept;  // non-blocking
  /// With the port that was chosen.
  [[nodiscard]] const MetricsAddress& address() const noexcept { return address_; }

 private:
  MetricsAddress address_;
  File tcp_;
  std::unique_ptr<UnixListener> unix_;  // instead
};

class MetricsServer {
 public:
  /// Keeps the reference.  `find_text`: the metrics now; what it throws becomes status 500.
  MetricsServer(const MetricsListener& listener, std::function<std::string()> find_text);
  ~MetricsServer();  // closes all connections
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
