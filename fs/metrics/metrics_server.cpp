#include "fs/metrics/metrics_server.hpp"

// A single loop: poll(2) on a wake-up, the listening socket and all clients.
//
//     asking      bytes come until the empty line, within kMetricsAskTime
//     answering   bytes go, within kMetricsReplyTime
//     leaving     all was sent; what the client still sends is dropped until it closes, because to
//                 close a socket with unread bytes resets it, and the answer may be lost
//
// Nothing waits for a client: its socket does not block.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <list>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "fs/base/wake.hpp"
#include "fs/control/path.hpp"
#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kMetricsLook{500};         // for deadlines
constexpr std::chrono::milliseconds kMetricsAcceptPause{200};  // after descriptors ran out
// At a time.  Not more: who has connected, and asked, is served before others take its place.
constexpr std::size_t kMetricsAcceptsMax = kMetricsClientsMax;
constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view kPlainType = "text/plain; charset=utf-8";

// ---- the listening socket ----

[[noreturn]] void throw_listen_error(int error, const MetricsAddress& address) {
  const std::string what = "listen for --metrics at " + to_string(address);
  if (error == EADDRINUSE) {
    throw Error(ErrorCode::busy, fmt::format("cannot {}: another process listens there; give "
                                             "another port, or 0 for any that is free",
                                             what));
  }
  if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) {
    throw Error(ErrorCode::invalid, describe_errno(error, what));
  }
  throw_errno(error, what);
}

union AnyAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

File listen_tcp(MetricsAddress& address) {
  AnyAddress at{};
  socklen_t size = sizeof at.v4;
  if (address.is_ipv6) {
    size = sizeof at.v6;
    at.v6.sin6_family = AF_INET6;
    at.v6.sin6_port = htons(address.port);
    inet_pton(AF_INET6, address.ip.c_str(), &at.v6.sin6_addr);
  } else {
    at.v4.sin_family = AF_INET;
    at.v4.sin_port = htons(address.port);
    inet_pton(AF_INET, address.ip.c_str(), &at.v4.sin_addr);
  }
  File socket(::socket(at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // A daemon that starts again is not kept out by connections of the one before.
  const int yes = 1;
  if (!socket || ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket.fd(), &at.any, size) != 0 || ::listen(socket.fd(), SOMAXCONN) != 0 ||
      ::getsockname(socket.fd(), &at.any, &size) != 0) {
    throw_listen_error(errno, address);
  }
  address.port = ntohs(address.is_ipv6 ? at.v6.sin6_port : at.v4.sin_port);
  return socket;
}

// ---- HTTP ----

struct MetricsReply {
  int status = 200;
  std::string_view reason = "OK";
  std::string_view type = kPlainType;
  std::string_view more = {};  // header lines
  std::string body = {};
};

std::string serialize(const MetricsReply& reply, bool with_body) {
  std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n",
      reply.status, reply.reason, reply.type, reply.body.size(), reply.more);
  return with_body ? text + reply.body : text;
}

/// METHOD TARGET of a request line; empty: it is none.
struct Asked {
  std::string_view method, path;
};
Asked parse_request_line(std::string_view request) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == 0 || first == std::string_view::npos || first == last) return {};
  if (!line.substr(last + 1).starts_with("HTTP/1.")) return {};
  std::string_view path = line.substr(first + 1, last - first - 1);
  path = path.substr(0, path.find('?'));
  return {line.substr(0, first), path};
}

bool is_whole(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos ||
         request.find("\n\n") != std::string_view::npos;
}

struct MetricsClient {
  enum class State { asking, answering, leaving, done };
  File socket;
  Clock::time_point until;
  State state = State::asking;
  std::string request = {}, reply = {};
  std::size_t sent = 0;
};

/// A directory that is mistyped is not made: nobody would look for the socket there.  Only
/// weightfs's own, which after a start of the host does not exist yet, is made.
void check_directory(const std::filesystem::path& socket) {
  const std::filesystem::path directory = socket.parent_path();
  std::error_code failed;
  if (directory == runtime_directory() || std::filesystem::exists(directory, failed)) return;
  if (failed) return;  // listening will say why
  throw Error(ErrorCode::not_found,
              fmt::format("the directory {} of the socket {} does not exist; make it, or correct "
                          "the path",
                          directory.string(), socket.string()));
}

}  // namespace

MetricsListener::MetricsListener(const MetricsAddress& address) : address_(address) {
  if (address_.socket.empty()) {
    tcp_ = listen_tcp(address_);
  } else {
    try {
      check_directory(address_.socket);
      unix_ = std::make_unique<UnixListener>(address_.socket);
    } catch (const Error& error) {
      throw error.within("--metrics");
    }
  }
}

int MetricsListener::fd() const noexcept { return unix_ ? unix_->fd() : tcp_.fd(); }

struct MetricsServer::State {
  State(const MetricsListener& the_listener, std::function<std::string()> the_text)
      : listener(the_listener), find_text(std::move(the_text)) {}

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        step();
      } catch (const std::exception& error) {  // out of memory
        log_error(fmt::format("metrics: {}", error.what()));
        clients.clear();
      }
    }
  }

  void step() {
    wait_events();
    static_cast<void>(wake.take());
    auto event = events.begin() + 2;
    for (MetricsClient& client : clients) {
      if ((event++)->revents != 0) serve(client);
      if (Clock::now() >= client.until) client.state = MetricsClient::State::done;
    }
    if (events[1].revents != 0) accept_clients();
    clients.remove_if(
        [](const MetricsClient& client) { return client.state == MetricsClient::State::done; });
  }

  void wait_events() {
    const bool accepts = Clock::now() >= accept_at;
    events.assign(1, {.fd = wake.fd(), .events = POLLIN, .revents = 0});
    events.push_back({.fd = accepts ? listener.fd() : -1, .events = POLLIN, .revents = 0});
    for (const MetricsClient& client : clients) {
      const bool sends = client.state == MetricsClient::State::answering;
      events.push_back({.fd = client.socket.fd(),
                        .events = static_cast<short>(sends ? POLLOUT : POLLIN),
                        .revents = 0});
    }
    const auto limit = accepts ? kMetricsLook : kMetricsAcceptPause;
    const int timeout = clients.empty() && accepts ? -1 : static_cast<int>(limit.count());
    if (::poll(events.data(), events.size(), timeout) < 0) {
      for (pollfd& event : events) event.revents = 0;
    }
  }

  void accept_clients() {
    for (std::size_t i = 0; i < kMetricsAcceptsMax; i++) {
      File socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        if (is_want_of_resources(errno)) accept_at = Clock::now() + kMetricsAcceptPause;
        if (errno != ECONNABORTED && errno != EINTR) return;
        continue;
      }
      if (clients.size() >= kMetricsClientsMax) drop_oldest();
      clients.push_back({.socket = std::move(socket), .until = Clock::now() + kMetricsAskTime});
    }
  }

  /// One that has not asked, or else that does not take its answer.
  void drop_oldest() {
    const auto asking =
        std::ranges::find(clients, MetricsClient::State::asking, &MetricsClient::state);
    clients.erase(asking != clients.end() ? asking : clients.begin());
  }

  void serve(MetricsClient& client) {
    if (client.state == MetricsClient::State::asking) receive(client);
    if (client.state == MetricsClient::State::answering) send(client);
    if (client.state == MetricsClient::State::leaving) drop_rest(client);
  }

  void receive(MetricsClient& client) {
    std::array<char, 2048> buffer;
    while (client.state == MetricsClient::State::asking) {
      const ssize_t got = ::recv(client.socket.fd(), buffer.data(), buffer.size(), 0);
      if (got <= 0) {
        const bool comes = got < 0 && (errno == EAGAIN || errno == EINTR);
        if (!comes) client.state = MetricsClient::State::done;
        return;
      }
      client.request.append(buffer.data(), static_cast<std::size_t>(got));
      const bool is_too_long = client.request.size() > kMetricsRequestMax;
      if (!is_whole(client.request) && !is_too_long) continue;
      client.reply = is_too_long ? serialize({.status = 431,
                                              .reason = "Request Header Fields Too Large",
                                              .body = "the request is too long\n"},
                                             true)
                                 : answer(client.request);
      client.state = MetricsClient::State::answering;
      client.until = Clock::now() + kMetricsReplyTime;
    }
  }

  [[nodiscard]] std::string answer(std::string_view request) {
    const Asked asked = parse_request_line(request);
    if (asked.method.empty()) {
      return serialize({.status = 400, .reason = "Bad Request", .body = "this is no HTTP/1.1\n"},
                       true);
    }
    const bool is_head = asked.method == "HEAD";
    if (asked.method != "GET" && !is_head) {
      return serialize({.status = 405,
                        .reason = "Method Not Allowed",
                        .more = "Allow: GET, HEAD\r\n",
                        .body = "only GET and HEAD\n"},
                       true);
    }
    if (asked.path == "/") {
      return serialize({.body = "weightfs: the metrics are at /metrics\n"}, !is_head);
    }
    if (asked.path != "/metrics") {
      return serialize(
          {.status = 404, .reason = "Not Found", .body = "the metrics are at /metrics\n"},
          !is_head);
    }
    return serialize(metrics(), !is_head);
  }

  [[nodiscard]] MetricsReply metrics() {
    try {
      if (text.empty() || Clock::now() >= text_until) {
        text = find_text();
        text_until = Clock::now() + kMetricsTextAge;
      }
      return {.type = kMetricsType, .body = text};
    } catch (const Error& error) {
      return {.status = 500,
              .reason = "Internal Server Error",
              .body = std::string(error.what()) + "\n"};
    }
  }

  static void send(MetricsClient& client) {
    while (client.sent < client.reply.size()) {
      const ssize_t sent = ::send(client.socket.fd(), client.reply.data() + client.sent,
                                  client.reply.size() - client.sent, MSG_NOSIGNAL);
      if (sent < 0) {
        const bool may_go_on = errno == EAGAIN || errno == EINTR;
        if (!may_go_on) client.state = MetricsClient::State::done;
        return;
      }
      client.sent += static_cast<std::size_t>(sent);
    }
    ::shutdown(client.socket.fd(), SHUT_WR);
    client.state = MetricsClient::State::leaving;
    client.reply = {};
  }

  static void drop_rest(MetricsClient& client) {
    std::array<char, 4096> ignored;
    for (int reads = 0; reads < 16; reads++) {  // others wait
      const ssize_t got = ::recv(client.socket.fd(), ignored.data(), ignored.size(), 0);
      if (got > 0) continue;
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      client.state = MetricsClient::State::done;
      return;
    }
  }

  const MetricsListener& listener;
  const std::function<std::string()> find_text;
  const Wake wake;
  // Used by the thread below only.
  std::list<MetricsClient> clients;  // the oldest first
  std::vector<pollfd> events;        // wake, listener, clients
  std::string text;
  Clock::time_point text_until = Clock::time_point::min();
  Clock::time_point accept_at = Clock::time_point::min();
  std::jthread thread{[this](const std::stop_token& stop) { run(stop); }};
};

MetricsServer::MetricsServer(const MetricsListener& listener,
                             std::function<std::string()> find_text)
    : state_(std::make_unique<State>(listener, std::move(find_text))) {}

MetricsServer::~MetricsServer() {
  state_->thread.request_stop();
  state_->wake.ring();
  state_->thread.join();
}

}  // namespace weightfs::fs
