#include "tests/support/http_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "store/os/file.hpp"

namespace weightfs::test {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string percent_decoded(std::string_view text, bool plus_is_space) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); i++) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      result += static_cast<char>(value);
      i += 2;
    } else {
      result += text[i] == '+' && plus_is_space ? ' ' : text[i];
    }
  }
  return result;
}

bool has_no_body(const ServedRequest& request, const ServedReply& reply) {
  return request.method == "HEAD" || reply.status < 200 || reply.status == 204 ||
         reply.status == 304;
}

std::string head_of(const ServedReply& reply) {
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " Served\r\n";
  bool length_given = reply.no_length || reply.status < 200 || reply.status == 204;
  for (const HttpHeader& header : reply.headers) {
    head += header.name + ": " + header.value + "\r\n";
    length_given = length_given || lower(header.name) == "content-length";
  }
  if (!length_given) head += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
  return head + "\r\n";
}

/// A connection without blocking calls: every wait also ends when the server ends.
class Connection {
 public:
  Connection(File socket, int stop) : socket_(std::move(socket)), stop_(stop) {}

  /// Returns: nullopt if the peer is gone, the server ends, or the data is not HTTP.
  std::optional<ServedRequest> read_request() {
    std::size_t head_bytes = 0;
    while ((head_bytes = received_.find("\r\n\r\n")) == std::string::npos) {
      if (received_.size() > kHeadBytesMax || !receive()) return std::nullopt;
    }
    std::optional<ServedRequest> request = parse_head(received_.substr(0, head_bytes + 2));
    received_.erase(0, head_bytes + 4);
    if (!request || !read_body(*request)) return std::nullopt;
    return request;
  }

  /// Sends everything.  Returns: false if the peer is gone, or the server ends.
  bool send_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(n));
      } else if (errno != EINTR && (errno != EAGAIN || !wait_for(POLLOUT))) {
        return false;
      }
    }
    return true;
  }

  void wait_for_the_end() {
    while (wait_for(POLLRDHUP | POLLIN) && receive()) {
    }
  }

  /// Makes close() send RST, so that the peer fails instead of seeing the end.
  void reset_at_close() {
    const linger no_linger{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.fd(), SOL_SOCKET, SO_LINGER, &no_linger, sizeof no_linger);
  }

 private:
  static constexpr std::size_t kHeadBytesMax = 1u << 20;

  /// Returns: false if the server ends.
  bool wait_for(short events) {
    pollfd fds[2] = {{.fd = socket_.fd(), .events = events, .revents = 0},
                     {.fd = stop_, .events = POLLIN, .revents = 0}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    return fds[1].revents == 0;
  }

  /// Appends the received bytes.  Returns: false if nothing more will arrive.
  bool receive() {
    char buffer[64u << 10];
    for (;;) {
      const ssize_t n = recv(socket_.fd(), buffer, sizeof buffer, 0);
      if (n > 0) {
        received_.append(buffer, static_cast<std::size_t>(n));
        return true;
      }
      if (n == 0 || (errno != EINTR && errno != EAGAIN)) return false;
      if (!wait_for(POLLIN)) return false;
    }
  }

  static std::optional<ServedRequest> parse_head(std::string_view head) {
    ServedRequest request;
    const std::size_t line = head.find("\r\n");
    const std::size_t target = head.find(' '), version = head.find(' ', target + 1);
    if (target == std::string_view::npos || version >= line) return std::nullopt;
    request.method = head.substr(0, target);
    request.target = head.substr(target + 1, version - target - 1);
    for (head.remove_prefix(line + 2); !head.empty(); head.remove_prefix(head.find("\r\n") + 2)) {
      const std::string_view header = head.substr(0, head.find("\r\n"));
      const std::size_t colon = header.find(':');
      if (colon == std::string_view::npos) return std::nullopt;
      std::string& value = request.headers[lower(header.substr(0, colon))];
      value += (value.empty() ? "" : ", ") + std::string(without_spaces(header.substr(colon + 1)));
    }
    return request;
  }

  bool read_body(ServedRequest& request) {
    const auto length = request.headers.find("content-length");
    if (length == request.headers.end()) return true;
    std::size_t bytes = 0;
    const std::string& text = length->second;
    if (std::from_chars(text.data(), text.data() + text.size(), bytes).ec != std::errc()) {
      return false;
    }
    const auto expect = request.headers.find("expect");
    if (expect != request.headers.end() && lower(expect->second) == "100-continue" &&
        !send_all("HTTP/1.1 100 Continue\r\n\r\n")) {
      return false;
    }
    while (received_.size() < bytes) {
      if (!receive()) return false;
    }
    request.body = received_.substr(0, bytes);
    received_.erase(0, bytes);
    return true;
  }

  File socket_;
  int stop_;
  std::string received_;  // bytes not yet parsed as a request
};

}  // namespace

std::string ServedRequest::path() const {
  return percent_decoded(std::string_view(target).substr(0, target.find('?')), false);
}

std::map<std::string, std::string> ServedRequest::query() const {
  std::map<std::string, std::string> result;
  const std::size_t mark = target.find('?');
  std::string_view rest =
      mark == std::string::npos ? std::string_view() : std::string_view(target).substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    const std::size_t equals = pair.find('=');
    result[percent_decoded(pair.substr(0, equals), true)] =
        equals == std::string_view::npos ? "" : percent_decoded(pair.substr(equals + 1), true);
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
  }
  return result;
}

class HttpServer::Impl {
 public:
  explicit Impl(Handler handler) : handler_(std::move(handler)) {
    if (!stop_ || !listener_) throw_errno(errno, "make a socket for tests");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_.fd(), generic, bytes) != 0 || listen(listener_.fd(), SOMAXCONN) != 0 ||
        getsockname(listener_.fd(), generic, &bytes) != 0) {
      throw_errno(errno, "listen on 127.0.0.1");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::jthread([this] { accept_all(); });
  }

  ~Impl() {
    eventfd_write(stop_.fd(), 1);
    acceptor_.join();  // no new threads after this
    threads_.clear();  // joins
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] unsigned connections() const noexcept { return accepted_; }

 private:
  void accept_all() {
    for (;;) {
      pollfd fds[2] = {{.fd = listener_.fd(), .events = POLLIN, .revents = 0},
                       {.fd = stop_.fd(), .events = POLLIN, .revents = 0}};
      if (poll(fds, 2, -1) < 0) continue;  // EINTR
      if (fds[1].revents != 0) return;
      File socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) continue;  // the peer has left already
      const int on = 1;
      setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      const unsigned number = ++accepted_;
      threads_.emplace_back([this, number, moved = std::move(socket)]() mutable {
        serve(Connection(std::move(moved), stop_.fd()), number);
      });
    }
  }

  void serve(Connection connection, unsigned number) {
    while (std::optional<ServedRequest> request = connection.read_request()) {
      request->connection = number;
      if (!answer(connection, *request)) return;
    }
  }

  /// Returns: false if the connection ends here.
  bool answer(Connection& connection, const ServedRequest& request) {
    const ServedReply reply = reply_to(request);
    if (reply.silent) {
      connection.wait_for_the_end();
      return false;
    }
    const bool cut = reply.reset || reply.cut_after <= reply.body.size();
    std::string bytes = head_of(reply);
    if (!has_no_body(request, reply)) bytes += reply.body.substr(0, reply.cut_after);
    if (!connection.send_all(bytes)) return false;
    if (reply.reset) connection.reset_at_close();
    const auto asked = request.headers.find("connection");
    const bool close_asked = asked != request.headers.end() && lower(asked->second) == "close";
    const bool close_told =
        std::any_of(reply.headers.begin(), reply.headers.end(), [](const HttpHeader& header) {
          return lower(header.name) == "connection" && lower(header.value) == "close";
        });
    return !cut && !reply.no_length && !close_asked && !close_told;
  }

  ServedReply reply_to(const ServedRequest& request) {
    try {
      return handler_(request);
    } catch (const std::exception& error) {
      return {.status = 500, .body = std::string("the test's handler threw: ") + error.what()};
    }
  }

  Handler handler_;
  File stop_{eventfd(0, EFD_CLOEXEC)};  // readable once the server ends
  File listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  std::uint16_t port_ = 0;
  std::atomic<unsigned> accepted_{0};
  std::vector<std::jthread> threads_;  // used only by the acceptor until it has ended
  std::jthread acceptor_;
};

HttpServer::HttpServer(Handler handler) : impl_(std::make_unique<Impl>(std::move(handler))) {}
HttpServer::~HttpServer() = default;

std::string HttpServer::url() const { return "http://127.0.0.1:" + std::to_string(port()); }
std::uint16_t HttpServer::port() const noexcept { return impl_->port(); }
unsigned HttpServer::connections() const noexcept { return impl_->connections(); }

}  // namespace weightfs::test
