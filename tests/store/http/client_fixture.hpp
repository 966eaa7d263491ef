// Http: requests and servers for the tests of HttpClient.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "store/http/client.hpp"
#include "store/os/file.hpp"

namespace weightfs::test {

class Http : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                             "no_proxy", "NO_PROXY", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
      unsetenv(name);
    }
  }
};

inline HttpOptions plain_options() {
  HttpOptions options;
  options.http_allowed = true;
  return options;
}

inline HttpRequest get_of(const std::string& url) {
  HttpRequest request;
  request.url = url;
  return request;
}

inline HttpRequest put_of(const std::string& url, const Source& body) {
  HttpRequest request = get_of(url);
  request.method = "PUT";
  request.body = &body;
  request.body_bytes = body.size_bytes();
  return request;
}

/// The TransportError that send() must throw.
inline TransportError transport_error_of(HttpClient& client, const HttpRequest& request,
                                         const Context& context = {}) {
  try {
    client.send(request, context);
  } catch (const TransportError& error) {
    return error;
  }
  ADD_FAILURE() << "no TransportError";
  return {ErrorCode::io, TransportError::Kind::other, ""};
}

/// Many bytes that take no memory; counts the bytes read.
class LargeSource final : public Source {
 public:
  explicit LargeSource(std::uint64_t size_bytes) : size_(size_bytes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
    for (std::size_t i = 0; i < into.size(); i++) into[i] = at(offset_bytes + i);
    read_bytes_ += into.size();
  }
  static std::byte at(std::uint64_t offset) {
    return static_cast<std::byte>((offset * 2654435761u) >> 13);
  }
  [[nodiscard]] std::uint64_t read_bytes() const { return read_bytes_; }

 private:
  std::uint64_t size_;
  mutable std::atomic<std::uint64_t> read_bytes_{0};
};

/// A server scripted byte by byte, one connection after another.
class RawServer {
 public:
  /// The connection is closed when the script ends.
  using Script = std::function<void(int socket, unsigned number)>;

  explicit RawServer(Script script) : script_(std::move(script)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_.fd(), generic, bytes) != 0 || listen(listener_.fd(), 16) != 0 ||
        getsockname(listener_.fd(), generic, &bytes) != 0) {
      throw_errno(errno, "listen on 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this] { serve_all(); });
  }

  ~RawServer() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      eventfd_write(stop_.fd(), 1);
      if (current_ >= 0) shutdown(current_, SHUT_RDWR);
    }
    thread_.join();
  }

  [[nodiscard]] std::string url(std::string_view scheme = "http") const {
    return std::string(scheme) + "://127.0.0.1:" + std::to_string(port_);
  }

  /// Called by the script: refuses new connections from now on.
  void refuse_new_ones() { listener_ = File(); }

 private:
  void serve_all() {
    for (unsigned number = 1; listener_; number++) {
      pollfd fds[2] = {{.fd = listener_.fd(), .events = POLLIN, .revents = 0},
                       {.fd = stop_.fd(), .events = POLLIN, .revents = 0}};
      poll(fds, 2, -1);
      const File socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      {
        const std::lock_guard lock(mutex_);
        if (ending_) return;
        current_ = socket.fd();
      }
      script_(socket.fd(), number);
      const std::lock_guard lock(mutex_);
      current_ = -1;
    }
  }

  Script script_;
  File listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  File stop_{eventfd(0, EFD_CLOEXEC)};
  std::uint16_t port_ = 0;
  std::mutex mutex_;  // guards the two below
  bool ending_ = false;
  int current_ = -1;
  std::jthread thread_;
};

/// Receives this many bytes, or fewer if the connection ends.
inline std::string receive_bytes(int socket, std::size_t bytes) {
  std::string result(bytes, '\0');
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = recv(socket, result.data() + done, bytes - done, 0);
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  result.resize(done);
  return result;
}

/// Receives up to the empty line; empty if the connection ended.
inline std::string receive_head(int socket) {
  std::string head;
  while (!head.ends_with("\r\n\r\n")) {
    const std::string next = receive_bytes(socket, 1);
    if (next.empty()) return {};
    head += next;
  }
  return head;
}

inline void send_text(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

inline void wait_for_end_of(int socket) {
  while (!receive_bytes(socket, 1).empty()) {
  }
}

}  // namespace weightfs::test
