// HttpClient: requests, replies, and connections.
#include "store/http/client.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/store/http/client_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/few_threads.hpp"
#include "tests/support/http_server.hpp"

using namespace weightfs;
using namespace weightfs::test;
using namespace std::chrono_literals;

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

// The agents that give out keys are asked so: a proxy would see their tokens.
TEST_F(Http, a_direct_client_uses_no_proxy) {
  std::atomic<unsigned> proxied{0};
  HttpServer proxy([&](const ServedRequest&) {
    proxied++;
    return ServedReply{};
  });
  HttpServer server([](const ServedRequest&) { return ServedReply{.body = "own"}; });
  for (const char* name : {"http_proxy", "ALL_PROXY"}) {
    setenv(name, proxy.url().c_str(), 1);
    HttpOptions options = plain_options();
    options.direct = true;
    HttpClient client(options);
    EXPECT_EQ(client.send(get_of(server.url()), {}).text, "own");
    unsetenv(name);
  }
  EXPECT_EQ(proxied, 0u);
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

/// Every server closes idle connections; libcurl then sends the request again on a new connection.
/// The caller must know: a PUT with If-None-Match may then find its own object.
TEST_F(Http, a_pooled_connection_that_died_is_replaced) {
  const std::string body(300'000, 'b');
  RawServer server([&](int socket, unsigned number) {
    receive_head(socket);
    if (number == 1) {
      send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
      receive_head(socket);  // and closes
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

/// The second connection is never made, but the first one may have carried the request.
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

// It once took no signal any more, so Ctrl-C and SIGTERM did nothing.
TEST_F(Http, a_thread_that_is_refused_leaves_the_callers_signals_as_they_were) {
  const FewThreads few(0);
  if (!few.works()) GTEST_SKIP() << "a limit of threads needs root";
  sigset_t before, after;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  EXPECT_THROW(const HttpClient client(plain_options()), std::system_error);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, &after), 0);
  const auto numbers = [](const sigset_t& set) {
    std::vector<int> found;
    for (int number = 1; number < SIGRTMIN; number++) {
      if (sigismember(&set, number) == 1) found.push_back(number);
    }
    return found;
  };
  EXPECT_EQ(numbers(after), numbers(before));
}
