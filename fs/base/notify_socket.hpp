// Notify socket: tells a service manager (systemd, Type=notify) how this process is, by the
// protocol of sd_notify(3): one datagram, lines of NAME=VALUE.
//
// Threads: made while the process has one; then all calls may run in parallel.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace weightfs::fs {

class NotifySocket {
 public:
  /// Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of the environment: they are not for
  /// the processes that this one starts.
  NotifySocket();

  /// Whether anybody wants to know.
  [[nodiscard]] bool is_wanted() const noexcept { return !address_.empty(); }

  /// Within which time the manager wants to hear WATCHDOG=1, again and again.
  [[nodiscard]] std::optional<std::chrono::microseconds> watchdog() const noexcept {
    return watchdog_;
  }

  /// Never waits.  Returns: whether the manager has it; what it has no room for now is dropped.
  bool send(std::string_view lines) const noexcept;

 private:
  std::string address_;  // a path, or '@' and an abstract name; empty: none
  std::optional<std::chrono::microseconds> watchdog_;
};

}  // namespace weightfs::fs
