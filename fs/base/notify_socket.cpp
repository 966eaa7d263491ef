#include "fs/base/notify_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>

#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

std::string take_variable(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  ::unsetenv(name);
  return text;
}

/// 0: not a number.
std::uint64_t number_of(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

}  // namespace

NotifySocket::NotifySocket() : address_(take_variable("NOTIFY_SOCKET")) {
  const std::uint64_t time = number_of(take_variable("WATCHDOG_USEC"));
  const std::string pid = take_variable("WATCHDOG_PID");
  const bool is_path = address_.starts_with('/') || address_.starts_with('@');
  if (!is_path || address_.size() >= sizeof(sockaddr_un::sun_path)) address_.clear();
  if (time > 0 && (pid.empty() || number_of(pid) == static_cast<std::uint64_t>(::getpid()))) {
    watchdog_ = std::chrono::microseconds(time);
  }
}

bool NotifySocket::send(std::string_view lines) const noexcept {
  if (!is_wanted()) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(address_.begin(), address_.end(), address.sun_path);
  if (address_.front() == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  const File socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return ::sendto(socket.fd(), lines.data(), lines.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                  reinterpret_cast<const sockaddr*>(&address), size) >= 0;
}

}  // namespace weightfs::fs
