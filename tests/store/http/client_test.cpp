#include "store/http/client.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "store/os/file.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/support.hpp"

using namespace weightfs;
using namespace weightfs::test;
using namespace std::chrono_literals;

namespace {

class Http : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                             "no_proxy", "NO_PROXY"}) {
      unsetenv(name);
    }
  }
};

HttpOptions plain_options() {
  HttpOptions options;
  options.http_allowed = true;
  return options;
}

HttpRequest get_of(const std::string& url) {
  HttpRequest request;
  request.url = url;
  return request;
}

HttpRequest put_of(const std::string& url, const Source& body) {
  HttpRequest request = get_of(url);
  request.method = "PUT";
  request.body = &body;
  request.body_bytes = body.size_bytes();
  return request;
}

/// The TransportError that sending must end with.
TransportError transport_error_of(HttpClient& client, const HttpRequest& request,
                                  const Context& context = {}) {
  try {
    client.send(request, context);
  } catch (const TransportError& error) {
    return error;
  }
  ADD_FAILURE() << "no TransportError";
  return {ErrorCode::io, TransportError::Kind::other, ""};
}

/// Many bytes that cost no memory; counts what was read of them.
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

/// A server that a script plays byte by byte, one connection after the other.
class RawServer {
 public:
  /// The connection is closed after the script.
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

  /// Called by the script: nobody can connect from now on.
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

/// So many bytes, or fewer where the connection ends.
std::string receive_bytes(int socket, std::size_t bytes) {
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

/// Up to the empty line; empty: the connection ended.
std::string receive_head(int socket) {
  std::string head;
  while (!head.ends_with("\r\n\r\n")) {
    const std::string next = receive_bytes(socket, 1);
    if (next.empty()) return {};
    head += next;
  }
  return head;
}

void send_text(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

void wait_for_end_of(int socket) {
  while (!receive_bytes(socket, 1).empty()) {
  }
}

}  // namespace

// ---- replies --------------------------------------------------------------------------------

TEST_F(Http, gives_status_headers_and_text) {
  HttpServer server([](const ServedRequest& request) {
    EXPECT_EQ(request.method, "GET");
    EXPECT_EQ(request.headers.at("x-mine"), "yes, mine");
    EXPECT_EQ(request.headers.at("x-empty"), "");
    return ServedReply{.status = 418,
                       .headers = {{"ETag", "  \"abc\" "}, {"X-Twice", "1"}, {"x-twice", "2"}},
                       .body = "short and stout"};
  });
  HttpClient client(plain_options());
  HttpRequest request = get_of(server.url() + "/pot");
  request.headers = {{"x-mine", "yes, mine"}, {"x-empty", ""}};
  const HttpReply reply = client.send(request, {});
  EXPECT_EQ(reply.status, 418);
  EXPECT_FALSE(reply.ok());
  EXPECT_EQ(reply.text, "short and stout");
  EXPECT_EQ(reply.find("etag"), "\"abc\"");
  EXPECT_EQ(reply.find("X-TWICE"), "1");
  EXPECT_EQ(reply.find("etagg"), std::nullopt);
  EXPECT_EQ(reply.find(""), std::nullopt);
  EXPECT_FALSE(reply.more);
  EXPECT_FALSE(reply.sent_twice);
}

TEST_F(Http, puts_the_body_into_the_callers_bytes_and_cuts_the_rest_off) {
  const std::string body = std::string(3u << 20, 'x') + "tail";
  HttpServer server([&](const ServedRequest&) { return ServedReply{.status = 206, .body = body}; });
  HttpClient client(plain_options());
  for (const std::size_t room : {body.size() + 1, body.size(), body.size() - 1, std::size_t{1}}) {
    std::string into(room, '?');
    HttpRequest request = get_of(server.url());
    request.into = std::as_writable_bytes(std::span(into));
    const HttpReply reply = client.send(request, {});
    EXPECT_EQ(reply.status, 206);
    EXPECT_EQ(reply.received_bytes, std::min(room, body.size()));
    EXPECT_EQ(into.substr(0, reply.received_bytes), body.substr(0, reply.received_bytes));
    EXPECT_EQ(reply.more, room < body.size());
    EXPECT_EQ(reply.text, "");
  }
}

TEST_F(Http, a_reply_that_is_no_success_leaves_the_callers_bytes_alone) {
  HttpServer server(
      [](const ServedRequest&) { return ServedReply{.status = 404, .body = "no such key"}; });
  HttpClient client(plain_options());
  std::string into = "before";
  HttpRequest request = get_of(server.url());
  request.into = std::as_writable_bytes(std::span(into));
  const HttpReply reply = client.send(request, {});
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.text, "no such key");
  EXPECT_EQ(reply.received_bytes, 0u);
  EXPECT_EQ(into, "before");
}

TEST_F(Http, text_has_a_limit) {
  HttpServer server(
      [](const ServedRequest&) { return ServedReply{.body = std::string(100, 'x')}; });
  HttpClient client(plain_options());
  HttpRequest request = get_of(server.url() + "/list?X-Amz-Signature=SECRET");
  request.text_bytes_max = 100;
  EXPECT_EQ(client.send(request, {}).text.size(), 100u);
  request.text_bytes_max = 99;
  std::string message;
  EXPECT_EQ(code_of([&] { client.send(request, {}); }, &message), ErrorCode::corrupt);
  EXPECT_EQ(message, "GET " + server.url() + "/list: the reply has more than 99 bytes of text");
}

TEST_F(Http, a_redirect_is_a_reply_and_never_followed) {
  std::atomic<int> asked{0};
  HttpServer server([&](const ServedRequest&) {
    asked++;
    return ServedReply{.status = 302, .headers = {{"Location", "/elsewhere"}}};
  });
  HttpClient client(plain_options());
  const HttpReply reply = client.send(get_of(server.url() + "/here"), {});
  EXPECT_EQ(reply.status, 302);
  EXPECT_EQ(reply.find("location"), "/elsewhere");
  EXPECT_EQ(asked, 1);
}

TEST_F(Http, informational_replies_are_skipped_with_their_headers) {
  RawServer server([](int socket, unsigned) {
    receive_head(socket);
    send_text(socket,
              "HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\n"
              "HTTP/1.1 200 OK\r\nX-Final: 1\r\nContent-Length: 2\r\n\r\nok");
  });
  HttpClient client(plain_options());
  const HttpReply reply = client.send(get_of(server.url()), {});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.text, "ok");
  EXPECT_EQ(reply.find("x-final"), "1");
  EXPECT_EQ(reply.find("x-early"), std::nullopt);
}

TEST_F(Http, the_end_of_the_connection_may_be_the_end_of_the_body) {
  HttpServer server(
      [](const ServedRequest&) { return ServedReply{.body = "all of it", .no_length = true}; });
  HttpClient client(plain_options());
  EXPECT_EQ(client.send(get_of(server.url()), {}).text, "all of it");
  EXPECT_EQ(client.send(get_of(server.url()), {}).text, "all of it");
  EXPECT_EQ(server.connections(), 2u);
}

// ---- requests -------------------------------------------------------------------------------

TEST_F(Http, paths_are_sent_as_they_are) {
  HttpServer server(
      [](const ServedRequest& request) { return ServedReply{.body = request.target}; });
  HttpClient client(plain_options());
  for (const std::string target : {"/a//b/%2e%2e/c", "/a/../b/./c", "/%7Euser/~user", "//",
                                   "/a%2Fb+c?x=%2f&y&z=a+b", "/k?list-type=2&prefix=%C3%A4/../"}) {
    EXPECT_EQ(client.send(get_of(server.url() + target), {}).text, target);
  }
}

TEST_F(Http, methods_without_a_body_say_so) {
  HttpServer server([](const ServedRequest& request) {
    const auto length = request.headers.find("content-length");
    return ServedReply{
        .headers = {{"X-Seen", request.method + " " +
                                   (length == request.headers.end() ? "none" : length->second)}},
        .body = "body"};
  });
  HttpClient client(plain_options());
  const auto seen = [&](const std::string& method, const Source* body) {
    HttpRequest request = get_of(server.url() + "/key");
    request.method = method;
    request.body = body;
    const HttpReply reply = client.send(request, {});
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.text, method == "HEAD" ? "" : "body");
    return std::string(reply.find("x-seen").value_or("nothing"));
  };
  const TextSource empty("");
  EXPECT_EQ(seen("GET", nullptr), "GET none");
  EXPECT_EQ(seen("HEAD", nullptr), "HEAD none");
  EXPECT_EQ(seen("DELETE", nullptr), "DELETE none");
  EXPECT_EQ(seen("PUT", nullptr), "PUT 0");
  EXPECT_EQ(seen("PUT", &empty), "PUT 0");
  EXPECT_EQ(seen("POST", nullptr), "POST 0");
  EXPECT_EQ(server.connections(), 1u);
}

TEST_F(Http, bodies_come_from_any_part_of_a_source) {
  HttpServer server([](const ServedRequest& request) {
    return ServedReply{.headers = {{"X-Expect", request.headers.contains("expect") ? "yes" : "no"}},
                       .body = request.method + request.body};
  });
  HttpClient client(plain_options());
  const LargeSource source(9u << 20);
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{(1u << 20) - 1},
                                    std::uint64_t{1u << 20}, std::uint64_t{7'654'321}}) {
    for (const std::string method : {"PUT", "POST"}) {
      HttpRequest request = put_of(server.url(), source);
      request.method = method;
      request.body_offset = 12'345;
      request.body_bytes = bytes;
      request.text_bytes_max = 10u << 20;
      const HttpReply reply = client.send(request, {});
      std::string expected(static_cast<std::size_t>(bytes), '\0');
      for (std::size_t i = 0; i < expected.size(); i++) {
        expected[i] = static_cast<char>(LargeSource::at(12'345 + i));
      }
      EXPECT_TRUE(reply.text == method + expected) << bytes;
      EXPECT_EQ(reply.find("x-expect"), bytes < (1u << 20) ? "no" : "yes") << bytes;
      EXPECT_FALSE(reply.sent_twice);
    }
  }
  EXPECT_EQ(server.connections(), 1u);
}

TEST_F(Http, what_a_source_throws_comes_out) {
  class Failing final : public Source {
   public:
    [[nodiscard]] std::uint64_t size_bytes() const override { return 3u << 20; }
    void read(std::uint64_t offset_bytes, std::span<std::byte>) const override {
      if (offset_bytes > 0) throw Error(ErrorCode::no_space, "the source is broken");
    }
  };
  HttpServer server([](const ServedRequest&) { return ServedReply{}; });
  HttpClient client(plain_options());
  const Failing source;
  std::string message;
  EXPECT_EQ(code_of([&] { client.send(put_of(server.url(), source), {}); }, &message),
            ErrorCode::no_space);
  EXPECT_EQ(message, "the source is broken");
  EXPECT_EQ(client.send(get_of(server.url()), {}).status, 200);
}

TEST_F(Http, an_upload_that_is_refused_is_not_sent_in_whole) {
  RawServer server([](int socket, unsigned) {
    EXPECT_TRUE(contains(receive_head(socket), "Expect: 100-continue"));
    send_text(socket, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    wait_for_end_of(socket);
  });
  HttpClient client(plain_options());
  const LargeSource source(256u << 20);
  const HttpReply reply = client.send(put_of(server.url(), source), {});
  EXPECT_EQ(reply.status, 403);
  EXPECT_EQ(reply.text, "no");
  EXPECT_LT(source.read_bytes(), source.size_bytes() / 2);
}

TEST_F(Http, a_header_cannot_break_the_request) {
  HttpServer server([](const ServedRequest&) { return ServedReply{}; });
  HttpClient client(plain_options());
  for (const std::string& bad :
       {std::string("a\r\nX-Evil: SECRET"), std::string("a\nb"), std::string("a\0b", 3)}) {
    HttpRequest request = get_of(server.url());
    request.headers = {{"x-mine", bad}};
    std::string message;
    EXPECT_EQ(code_of([&] { client.send(request, {}); }, &message), ErrorCode::invalid);
    EXPECT_FALSE(contains(message, "SECRET"));
  }
  EXPECT_EQ(server.connections(), 0u);
}

TEST_F(Http, urls_that_cannot_be_used_are_refused) {
  HttpClient any(plain_options());
  for (const std::string url :
       {"", "127.0.0.1:1/x", "ftp://127.0.0.1/x", "http://", "http://127.0.0.1:1/a b",
        "http://127.0.0.1:1/a#b", "http://who:SECRET@127.0.0.1:1/a", "http://127.0.0.1:x/a"}) {
    const TransportError error = transport_error_of(any, get_of(url + "?q=SECRET"));
    EXPECT_EQ(error.code(), ErrorCode::invalid) << url << error.what();
    EXPECT_FALSE(error.may_have_arrived());
    EXPECT_FALSE(contains(error.what(), "SECRET")) << error.what();
  }
}

TEST_F(Http, plain_http_only_where_it_is_allowed) {
  HttpServer server([](const ServedRequest&) { return ServedReply{}; });
  HttpClient client(HttpOptions{});
  const TransportError error = transport_error_of(client, get_of(server.url() + "/key"));
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  EXPECT_EQ(std::string(error.what()),
            "GET " + server.url() + "/key: plain http:// is not allowed here, only https://");
  EXPECT_EQ(server.connections(), 0u);
}

TEST_F(Http, a_proxy_of_the_environment_is_used) {
  HttpServer proxy(
      [](const ServedRequest& request) { return ServedReply{.body = request.target}; });
  setenv("http_proxy", proxy.url().c_str(), 1);
  HttpClient client(plain_options());
  EXPECT_EQ(client.send(get_of("http://bucket.invalid/a//../b?x=1"), {}).text,
            "http://bucket.invalid/a//../b?x=1");
  unsetenv("http_proxy");
}

// ---- connections ----------------------------------------------------------------------------

TEST_F(Http, connections_are_used_again) {
  HttpServer server([](const ServedRequest& request) {
    return ServedReply{.body = std::to_string(request.connection)};
  });
  HttpClient client(plain_options());
  for (int i = 0; i < 20; i++) EXPECT_EQ(client.send(get_of(server.url()), {}).text, "1");
  EXPECT_EQ(server.connections(), 1u);
}

TEST_F(Http, requests_run_in_parallel) {
  constexpr int kTogether = 16;
  std::atomic<int> inside{0};
  HttpServer server([&](const ServedRequest&) {
    inside++;
    EXPECT_TRUE(eventually([&] { return inside >= kTogether; }));
    return ServedReply{.body = "together"};
  });
  HttpClient client(plain_options());
  std::vector<std::jthread> threads;
  for (int i = 0; i < kTogether; i++) {
    threads.emplace_back(
        [&] { EXPECT_EQ(client.send(get_of(server.url()), {}).text, "together"); });
  }
}

TEST_F(Http, more_requests_than_connections_wait) {
  std::atomic<unsigned> inside{0}, most{0};
  HttpServer server([&](const ServedRequest& request) {
    const unsigned now = ++inside;
    unsigned before = most;
    while (before < now && !most.compare_exchange_weak(before, now)) {
    }
    std::this_thread::yield();
    inside--;
    return ServedReply{.body = request.target};
  });
  HttpOptions options = plain_options();
  options.connections_max = 4;
  HttpClient client(options);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 100; i++) {
      threads.emplace_back([&, i] {
        const std::string target = "/" + std::to_string(i);
        EXPECT_EQ(client.send(get_of(server.url() + target), {}).text, target);
      });
    }
  }
  EXPECT_LE(most, 4u);
  EXPECT_LE(server.connections(), 4u);
}

TEST_F(Http, connections_to_all_hosts_together_are_limited) {
  HttpServer first([](const ServedRequest&) { return ServedReply{.body = "first"}; });
  HttpServer second([](const ServedRequest&) { return ServedReply{.body = "second"}; });
  HttpOptions options = plain_options();
  options.connections_max = 1;
  HttpClient client(options);
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(client.send(get_of(first.url()), {}).text, "first");
    EXPECT_EQ(client.send(get_of(second.url()), {}).text, "second");
  }
  EXPECT_EQ(first.connections(), 3u);
  EXPECT_EQ(second.connections(), 3u);
}

TEST_F(Http, destruction_closes_idle_connections) {
  std::atomic<bool> ended{false};
  RawServer server([&](int socket, unsigned) {
    receive_head(socket);
    send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    wait_for_end_of(socket);
    ended = true;
  });
  {
    HttpClient client(plain_options());
    EXPECT_EQ(client.send(get_of(server.url()), {}).status, 200);
    EXPECT_FALSE(ended);
  }
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
}

TEST_F(Http, sockets_are_not_inherited_by_programs) {
  unsigned found = 0;
  HttpServer* self = nullptr;
  HttpServer server([&](const ServedRequest&) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int fd = std::stoi(entry.path().filename());
      sockaddr_in peer{};
      socklen_t bytes = sizeof peer;
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
          peer.sin_family == AF_INET && ntohs(peer.sin_port) == self->port()) {
        found++;
        EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
      }
    }
    return ServedReply{};
  });
  self = &server;
  HttpClient client(plain_options());
  client.send(get_of(server.url()), {});
  EXPECT_EQ(found, 1u);
}

/// What every server does after a while; libcurl sends the request again on a fresh connection.
/// The caller must know: a PUT with If-None-Match may then meet its own object.
TEST_F(Http, a_pooled_connection_that_died_is_replaced) {
  const std::string body(300'000, 'b');
  RawServer server([&](int socket, unsigned number) {
    receive_head(socket);
    if (number == 1) {
      send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
      receive_head(socket);  // and dies
      return;
    }
    const bool same = receive_bytes(socket, body.size()) == body;
    send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
    send_text(socket, same ? "same" : "else");
  });
  HttpClient client(plain_options());
  EXPECT_FALSE(client.send(get_of(server.url()), {}).sent_twice);
  const TextSource source(body);
  const HttpReply reply = client.send(put_of(server.url(), source), {});
  EXPECT_EQ(reply.text, "same");
  EXPECT_TRUE(reply.sent_twice);
}

/// The second connection is never made, yet the first one may have carried the request.
TEST_F(Http, a_request_that_died_in_the_pool_may_have_arrived) {
  RawServer* self = nullptr;
  RawServer server([&](int socket, unsigned) {
    receive_head(socket);
    send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    receive_head(socket);
    self->refuse_new_ones();
  });
  self = &server;
  HttpClient client(plain_options());
  client.send(get_of(server.url()), {});
  const TransportError error = transport_error_of(client, get_of(server.url()));
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.kind(), TransportError::Kind::broken);
  EXPECT_TRUE(error.may_have_arrived());
}

// ---- failures -------------------------------------------------------------------------------

TEST_F(Http, a_host_that_refuses_is_named) {
  std::string url;
  {
    const HttpServer gone([](const ServedRequest&) { return ServedReply{}; });
    url = gone.url();
  }
  HttpClient client(plain_options());
  const TransportError error = transport_error_of(client, get_of(url + "/key?token=SECRET"));
  EXPECT_EQ(std::string(error.what()), "cannot reach " + url + ": connection refused");
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.kind(), TransportError::Kind::connect);
  EXPECT_FALSE(error.may_have_arrived());
}

TEST_F(Http, a_host_without_an_address_is_named) {
  HttpClient client(plain_options());
  // Longer than a label may be: no name server is asked.
  const std::string url = "http://" + std::string(64, 'x') + ".invalid";
  const TransportError error = transport_error_of(client, get_of(url + "/key"));
  EXPECT_EQ(std::string(error.what()),
            "cannot reach " + url + ": the host name cannot be resolved");
  EXPECT_EQ(error.kind(), TransportError::Kind::resolve);
  EXPECT_FALSE(error.may_have_arrived());
}

TEST_F(Http, bodies_that_end_early_are_errors_without_secrets) {
  for (const bool reset : {false, true}) {
    for (const std::size_t cut : {std::size_t{0}, std::size_t{3}}) {
      HttpServer server([&](const ServedRequest&) {
        return ServedReply{.headers = {{"X-Reply", "SECRET"}},
                           .body = "0123456789",
                           .cut_after = cut,
                           .reset = reset};
      });
      HttpClient client(plain_options());
      HttpRequest request = get_of(server.url() + "/a/key?X-Amz-Signature=SECRET");
      request.headers = {{"Authorization", "SECRET"}};
      const TransportError error = transport_error_of(client, request);
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_EQ(error.kind(), TransportError::Kind::broken);
      EXPECT_TRUE(error.may_have_arrived());
      EXPECT_TRUE(contains(error.what(), "GET " + server.url() + "/a/key: ")) << error.what();
      EXPECT_FALSE(contains(error.what(), "SECRET")) << error.what();
    }
  }
}

TEST_F(Http, a_chunked_body_ends_with_its_last_chunk) {
  for (const bool whole : {true, false}) {
    RawServer server([&](int socket, unsigned) {
      receive_head(socket);
      send_text(socket, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
      if (whole) send_text(socket, "2\r\nde\r\n0\r\n\r\n");
    });
    HttpClient client(plain_options());
    if (whole) {
      EXPECT_EQ(client.send(get_of(server.url()), {}).text, "abcde");
    } else {
      EXPECT_EQ(transport_error_of(client, get_of(server.url())).kind(),
                TransportError::Kind::broken);
    }
  }
}

TEST_F(Http, what_is_not_http_is_broken) {
  for (const std::string_view answer : {"", "220 mail.example ready\r\n", "HTTP/1.1 200 OK\r\nX"}) {
    RawServer server([&](int socket, unsigned) {
      receive_head(socket);
      send_text(socket, answer);
    });
    HttpClient client(plain_options());
    const TransportError error = transport_error_of(client, get_of(server.url() + "/x"));
    EXPECT_EQ(error.kind(), TransportError::Kind::broken) << answer;
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
  }
}

// ---- time and stop --------------------------------------------------------------------------

TEST_F(Http, a_deadline_ends_the_wait) {
  HttpServer server([](const ServedRequest&) { return ServedReply{.silent = true}; });
  HttpClient client(plain_options());
  std::string message;
  EXPECT_EQ(
      code_of(
          [&] { client.send(get_of(server.url() + "/key?token=SECRET"), Context{}.within(50ms)); },
          &message),
      ErrorCode::timed_out);
  EXPECT_EQ(message, "timed out while waiting for GET " + server.url() + "/key");
  EXPECT_EQ(code_of([&] { client.send(get_of(server.url()), Context{}.within(-1s)); }),
            ErrorCode::timed_out);
  EXPECT_EQ(server.connections(), 1u) << "too late before it began";
}

TEST_F(Http, stops_while_the_server_is_silent) {
  std::atomic<int> asked{0};
  HttpServer server([&](const ServedRequest& request) {
    asked++;
    return ServedReply{.silent = request.target == "/silent"};
  });
  HttpOptions options = plain_options();
  // A connection that is there already and limits far away: only the stop wakes the client.
  options.connect_timeout = options.stall_timeout = 1h;
  HttpClient client(options);
  EXPECT_EQ(client.send(get_of(server.url()), {}).status, 200);
  std::stop_source stop;
  const Clock::time_point limit = Clock::now() + 30s;  // it looks around once a minute anyway
  std::string message;
  {
    const std::jthread stopper([&] {
      EXPECT_TRUE(eventually([&] { return asked == 2; }));
      stop.request_stop();
    });
    EXPECT_EQ(code_of(
                  [&] {
                    client.send(get_of(server.url() + "/silent"),
                                Context{.stop = stop.get_token()});
                  },
                  &message),
              ErrorCode::cancelled);
  }
  EXPECT_LT(Clock::now(), limit);
  EXPECT_EQ(message, "stopped while waiting for GET " + server.url() + "/silent");
  EXPECT_EQ(client.send(get_of(server.url()), {}).status, 200);
  EXPECT_EQ(code_of([&] { client.send(get_of(server.url()), Context{.stop = stop.get_token()}); }),
            ErrorCode::cancelled);
  EXPECT_EQ(asked, 3) << "stopped before it began";
}

TEST_F(Http, requests_that_wait_for_a_connection_stop_and_time_out_too) {
  std::atomic<int> asked{0};
  HttpServer server([&](const ServedRequest&) {
    asked++;
    return ServedReply{.silent = true};
  });
  HttpOptions options = plain_options();
  options.connections_max = 1;
  HttpClient client(options);
  std::stop_source first, second;
  const auto cancelled = [&](const std::stop_source& stop) {
    EXPECT_EQ(
        code_of([&] { client.send(get_of(server.url()), Context{.stop = stop.get_token()}); }),
        ErrorCode::cancelled);
  };
  const std::jthread running([&] { cancelled(first); });
  EXPECT_TRUE(eventually([&] { return asked == 1; }));
  {
    const std::jthread waiting([&] { cancelled(second); });
    EXPECT_EQ(code_of([&] { client.send(get_of(server.url()), Context{}.within(50ms)); }),
              ErrorCode::timed_out);
    second.request_stop();
  }
  first.request_stop();
  EXPECT_EQ(asked, 1);
}

/// The caller frees its buffers as soon as send() is back: sanitizers see who writes later.
TEST_F(Http, stopped_transfers_touch_nothing_afterwards) {
  HttpServer server(
      [](const ServedRequest&) { return ServedReply{.body = std::string(1u << 20, 'x')}; });
  HttpClient client(plain_options());
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; i++) {
        auto into = std::make_unique<std::byte[]>(1u << 20);
        HttpRequest request = get_of(server.url());
        request.into = {into.get(), 1u << 20};
        std::stop_source stop;
        std::atomic<bool> go{false};
        const std::jthread stopper([&] {
          while (!go) std::this_thread::yield();
          for (int k = 0; k < t * 50 * i; k++) std::this_thread::yield();
          stop.request_stop();
        });
        go = true;
        try {
          EXPECT_EQ(client.send(request, Context{.stop = stop.get_token()}).received_bytes,
                    1u << 20);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::cancelled);
        }
      }
    });
  }
}

TEST_F(Http, a_silent_server_is_a_stall) {
  HttpServer server([](const ServedRequest&) { return ServedReply{.silent = true}; });
  HttpOptions options = plain_options();
  options.stall_timeout = 200ms;
  HttpClient client(options);
  const TransportError error = transport_error_of(client, get_of(server.url() + "/key?x=SECRET"));
  EXPECT_EQ(std::string(error.what()),
            "GET " + server.url() + "/key: no data transferred for 0.2 s");
  EXPECT_EQ(error.kind(), TransportError::Kind::stalled);
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_TRUE(error.may_have_arrived());
}

TEST_F(Http, a_server_that_takes_no_more_is_a_stall) {
  RawServer server([](int socket, unsigned) {
    receive_head(socket);
    send_text(socket, "HTTP/1.1 100 Continue\r\n\r\n");
    pollfd gone{.fd = socket, .events = POLLRDHUP, .revents = 0};
    poll(&gone, 1, -1);
  });
  HttpOptions options = plain_options();
  options.stall_timeout = 500ms;
  HttpClient client(options);
  const LargeSource source(1u << 30);
  EXPECT_EQ(transport_error_of(client, put_of(server.url(), source)).kind(),
            TransportError::Kind::stalled);
}

/// Slower than any limit on speed would allow, but alive.
TEST_F(Http, a_slow_server_is_no_stall) {
  RawServer server([](int socket, unsigned) {
    receive_head(socket);
    send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n");
    for (int i = 0; i < 30; i++) {
      send_text(socket, "x");
      pollfd gone{.fd = socket, .events = POLLRDHUP, .revents = 0};
      poll(&gone, 1, 100);
    }
  });
  HttpOptions options = plain_options();
  options.stall_timeout = 2'000ms;
  HttpClient client(options);
  EXPECT_EQ(client.send(get_of(server.url()), {}).text, std::string(30, 'x'));
}

// ---- TLS ------------------------------------------------------------------------------------

namespace {

struct FreeSsl {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* connection) const { SSL_free(connection); }
};
template <typename T>
using OfSsl = std::unique_ptr<T, FreeSsl>;

/// A certificate that signs itself, for a host ("IP:127.0.0.1").
class SelfSigned {
 public:
  explicit SelfSigned(const std::string& alternative_name)
      : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    X509* const x = certificate_.get();
    X509_set_version(x, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3'600);
    X509_gmtime_adj(X509_getm_notAfter(x), 24 * 3'600);
    X509_set_pubkey(x, key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("weightfs test"), -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    add(NID_basic_constraints, "critical,CA:TRUE");
    add(NID_subject_alt_name, alternative_name);
    X509_sign(x, key_.get(), EVP_sha256());
  }

  [[nodiscard]] EVP_PKEY* key() const { return key_.get(); }
  [[nodiscard]] X509* certificate() const { return certificate_.get(); }

  [[nodiscard]] std::string pem() const {
    BIO* const memory = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(memory, certificate_.get());
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(memory, &bytes);
    const std::string result(bytes, static_cast<std::size_t>(count));
    BIO_free(memory);
    return result;
  }

 private:
  void add(int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, certificate_.get(), certificate_.get(), nullptr, nullptr, 0);
    const OfSsl<X509_EXTENSION> extension(
        X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
    X509_add_ext(certificate_.get(), extension.get(), -1);
  }

  OfSsl<EVP_PKEY> key_;
  OfSsl<X509> certificate_;
};

/// For the server: OpenSSL writes without MSG_NOSIGNAL.
class WithoutSigpipe {
 public:
  WithoutSigpipe() : before_(signal(SIGPIPE, SIG_IGN)) {}
  ~WithoutSigpipe() { signal(SIGPIPE, before_); }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sighandler_t before_;
};

/// Answers one request of each connection over TLS.
RawServer::Script tls_script(const SelfSigned& identity, std::atomic<unsigned>& answered) {
  return [&](int socket, unsigned) {
    const OfSsl<SSL_CTX> context(SSL_CTX_new(TLS_server_method()));
    SSL_CTX_use_certificate(context.get(), identity.certificate());
    SSL_CTX_use_PrivateKey(context.get(), identity.key());
    const OfSsl<SSL> connection(SSL_new(context.get()));
    SSL_set_fd(connection.get(), socket);
    if (SSL_accept(connection.get()) != 1) return;
    std::string head;
    char buffer[1'024];
    while (!head.ends_with("\r\n\r\n")) {
      const int n = SSL_read(connection.get(), buffer, sizeof buffer);
      if (n <= 0) return;
      head.append(buffer, static_cast<std::size_t>(n));
    }
    answered++;
    const std::string reply = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret";
    SSL_write(connection.get(), reply.data(), static_cast<int>(reply.size()));
    SSL_shutdown(connection.get());
    wait_for_end_of(socket);
  };
}

}  // namespace

TEST_F(Http, https_only_with_a_certificate_that_is_trusted) {
  const WithoutSigpipe without_sigpipe;
  const SelfSigned identity("IP:127.0.0.1");
  std::atomic<unsigned> answered{0};
  RawServer server(tls_script(identity, answered));
  {
    HttpClient client(HttpOptions{});
    const TransportError error =
        transport_error_of(client, get_of(server.url("https") + "/key?token=SECRET"));
    EXPECT_EQ(error.code(), ErrorCode::permission);
    EXPECT_EQ(error.kind(), TransportError::Kind::tls);
    EXPECT_FALSE(error.may_have_arrived());
    EXPECT_TRUE(
        contains(error.what(), "the certificate of " + server.url("https") + " is not trusted: "))
        << error.what();
    EXPECT_TRUE(contains(error.what(), "set AWS_CA_BUNDLE")) << error.what();
    EXPECT_FALSE(contains(error.what(), "SECRET")) << error.what();
    EXPECT_EQ(answered, 0u);
  }
  const TempDir directory;
  HttpOptions options;
  options.ca_bundle = directory / "ca.pem";
  write_text(options.ca_bundle, identity.pem());
  HttpClient client(options);
  EXPECT_EQ(client.send(get_of(server.url("https") + "/key"), {}).text, "secret");
  EXPECT_EQ(answered, 1u);
}

TEST_F(Http, a_trusted_certificate_of_another_host_is_refused) {
  const WithoutSigpipe without_sigpipe;
  const SelfSigned identity("DNS:elsewhere.invalid,IP:127.0.0.2");
  std::atomic<unsigned> answered{0};
  RawServer server(tls_script(identity, answered));
  const TempDir directory;
  HttpOptions options;
  options.ca_bundle = directory / "ca.pem";
  write_text(options.ca_bundle, identity.pem());
  HttpClient client(options);
  const TransportError error = transport_error_of(client, get_of(server.url("https")));
  EXPECT_EQ(error.code(), ErrorCode::permission);
  EXPECT_EQ(error.kind(), TransportError::Kind::tls);
  EXPECT_EQ(answered, 0u);
}

TEST_F(Http, a_bundle_that_cannot_be_read_is_named) {
  RawServer server([](int socket, unsigned) { wait_for_end_of(socket); });
  HttpOptions options;
  options.ca_bundle = "/no/such/bundle.pem";
  HttpClient client(options);
  const TransportError error = transport_error_of(client, get_of(server.url("https")));
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  EXPECT_EQ(error.kind(), TransportError::Kind::tls);
  EXPECT_EQ(std::string(error.what()),
            "cannot read certificates from /no/such/bundle.pem (AWS_CA_BUNDLE)");
}

TEST_F(Http, a_server_that_speaks_no_tls_was_not_reached) {
  RawServer server([](int socket, unsigned) {
    receive_bytes(socket, 1);
    send_text(socket, "HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  HttpClient client(HttpOptions{});
  const TransportError error = transport_error_of(client, get_of(server.url("https")));
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.kind(), TransportError::Kind::tls);
  EXPECT_FALSE(error.may_have_arrived());
}

// ---- acknowledgements -----------------------------------------------------------------------

namespace {

constexpr int kRequestsOfQuickAckTest = 40;
constexpr int kSkipped = 77;

/// A counter of /proc/net/netstat, of this process's network namespace.
long tcp_counter(const std::string& name) {
  std::ifstream file("/proc/net/netstat");
  std::string names, values;
  while (std::getline(file, names) && std::getline(file, values)) {
    std::istringstream each_name(names), each_value(values);
    std::string of_name, of_value;
    while (each_name >> of_name && each_value >> of_value) {
      if (of_name == name) return std::stol(of_value);
    }
  }
  return -1;
}

bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const File socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::copy_n("lo", 3, loopback.ifr_name);
  loopback.ifr_flags = IFF_UP;
  return ioctl(socket.fd(), SIOCSIFFLAGS, &loopback) == 0;
}

/// How many acknowledgements were delayed, as an exit status.
int count_delayed_acknowledgements() {
  if (!enter_own_network()) return kSkipped;
  const long before = tcp_counter("DelayedACKs");
  if (before < 0) return kSkipped;
  RawServer server([](int socket, unsigned) {
    while (!receive_head(socket).empty()) {
      send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
      send_text(socket, "body");  // leaves when the head was acknowledged, and no earlier
    }
  });
  HttpClient client(plain_options());
  for (int i = 0; i < kRequestsOfQuickAckTest; i++) client.send(get_of(server.url()), {});
  return static_cast<int>(std::min(tcp_counter("DelayedACKs") - before, 76l));
}

}  // namespace

/// Ceph's gateway answers in two packets, and waits with the second one for the acknowledgement of
/// the first; delayed, that costs every GET 40 ms.
TEST_F(Http, replies_are_acknowledged_at_once) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int status = 78;
    try {
      status = count_delayed_acknowledgements();
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "no network namespace of its own";
  // Some may be the server's, on a machine that leaves its thread waiting for long.
  EXPECT_LT(WEXITSTATUS(status), kRequestsOfQuickAckTest / 2);
}
