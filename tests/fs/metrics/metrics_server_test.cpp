// The server against clients that are slow, silent, many, or speak something else.

#include "fs/metrics/metrics_server.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

constexpr int kReplyLimitMs = 30'000;

File connect_tcp(std::uint16_t port) {
  File socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.fd(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  return socket;
}

void say(const File& socket, std::string_view text) {
  EXPECT_EQ(::send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

/// All until the server closes.
std::string hear(const File& socket) {
  std::string all;
  std::array<char, 4096> buffer;
  while (true) {
    pollfd event{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&event, 1, kReplyLimitMs) <= 0) return all + "[nothing came]";
    const ssize_t got = ::recv(socket.fd(), buffer.data(), buffer.size(), 0);
    if (got < 0) return all + "[reset]";
    if (got == 0) return all;
    all.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

class MetricsServerTest : public testing::Test {
 protected:
  std::string ask(std::string_view request) const {
    const File socket = connect_tcp(listener.address().port);
    say(socket, request);
    return hear(socket);
  }

  std::atomic<int> asked = 0;
  std::string text = "weightfs_a 1\n";
  MetricsListener listener{parse_metrics_address("127.0.0.1:0")};
  MetricsServer server{listener, [this] {
                         asked++;
                         return text;
                       }};
};

TEST_F(MetricsServerTest, GivesOutTheMetrics) {
  EXPECT_NE(listener.address().port, 0);
  EXPECT_EQ(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: 13\r\nConnection: close\r\n\r\nweightfs_a 1\n");
  const std::string head = ask("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: 13\r\n"), std::string::npos);
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(MetricsServerTest, RefusesEverythingElse) {
  EXPECT_TRUE(ask("GET / HTTP/1.1\r\n\r\n").ends_with("/metrics\n"));
  EXPECT_TRUE(ask("GET /metricsx HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(ask("GET /../etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  EXPECT_TRUE(ask("\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(ask("GET /metrics\n\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(ask("GET /metrics SSH-2.0\r\n\r\n").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(ask("GET /" + std::string(kMetricsRequestMax, 'a')).starts_with("HTTP/1.1 431 "));
  EXPECT_EQ(asked, 0);
}

/// A body that nobody reads must not reset the connection before its answer was read.
TEST_F(MetricsServerTest, ABodyDoesNotCostTheAnswer) {
  const std::string body(100'000, 'b');
  EXPECT_TRUE(ask("POST /metrics HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + body)
                  .ends_with("only GET and HEAD\n"));
}

TEST_F(MetricsServerTest, SilentClientsKeepNobodyOut) {
  std::vector<File> silent;
  for (std::size_t i = 0; i < 4 * kMetricsClientsMax; i++) {
    silent.push_back(connect_tcp(listener.address().port));
    say(silent.back(), "GET /met");
  }
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\n\r\n").ends_with("weightfs_a 1\n"));
  EXPECT_EQ(hear(silent.front()).find("HTTP"), std::string::npos);  // closed long ago
}

TEST_F(MetricsServerTest, AClientThatNeverEndsItsRequestIsClosed) {
  const File slow = connect_tcp(listener.address().port);
  say(slow, "GET /metrics HTTP/1.1\r\nX: ");
  EXPECT_EQ(hear(slow), "");  // by kMetricsAskTime
}

TEST_F(MetricsServerTest, ManyRequestsDoNotMakeTheTextEachTime) {
  const auto begin = Clock::now();
  for (int i = 0; i < 200; i++) ask("GET /metrics HTTP/1.1\r\n\r\n");
  const auto most = (Clock::now() - begin) / kMetricsTextAge + 1;
  EXPECT_LE(asked, most);
}

/// Its text is larger than its socket takes, and others are served meanwhile.  What it has sent
/// that nobody reads must not reset the connection before the text has gone.
TEST(MetricsServerSlow, AClientThatDoesNotReadHoldsUpNobody) {
  const MetricsListener listener(parse_metrics_address("127.0.0.1:0"));
  const std::string large(32u << 20, 'x');
  const MetricsServer server(listener, [&] { return large; });
  const File deaf = connect_tcp(listener.address().port);
  say(deaf, "GET /metrics HTTP/1.1\r\n\r\n" + std::string(10'000, 'b'));
  const File other = connect_tcp(listener.address().port);
  say(other, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(hear(other).ends_with("/metrics\n"));
  const std::string all = hear(deaf);  // it reads at last
  EXPECT_TRUE(all.ends_with(large));
}

/// Processes that connect and do nothing else come as fast as they can be accepted.
TEST(MetricsServerFlood, WhoHasAskedIsServedBeforeMoreAreTaken) {
  const MetricsListener listener(parse_metrics_address("127.0.0.1:0"));
  const File asking = connect_tcp(listener.address().port);
  say(asking, "GET /metrics HTTP/1.1\r\n\r\n");
  std::vector<File> silent;
  for (std::size_t i = 0; i < 4 * kMetricsClientsMax; i++) {
    silent.push_back(connect_tcp(listener.address().port));
  }
  const MetricsServer server(listener, [] { return std::string("weightfs_a 1\n"); });
  EXPECT_TRUE(hear(asking).ends_with("weightfs_a 1\n"));
}

TEST(MetricsServerErrors, WhatCannotBeSaidIsAStatus) {
  const MetricsListener listener(parse_metrics_address("127.0.0.1:0"));
  const MetricsServer server(
      listener, []() -> std::string { throw Error(ErrorCode::io, "the disk is gone"); });
  const File socket = connect_tcp(listener.address().port);
  say(socket, "GET /metrics HTTP/1.1\r\n\r\n");
  const std::string reply = hear(socket);
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 500 ")) << reply;
  EXPECT_TRUE(reply.ends_with("the disk is gone\n")) << reply;
}

TEST(MetricsServerErrors, APortThatIsTakenIsNamed) {
  const MetricsListener first(parse_metrics_address("127.0.0.1:0"));
  try {
    const MetricsListener second(first.address());
    FAIL() << "two of them listen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::busy);
    EXPECT_NE(std::string(error.what()).find(to_string(first.address())), std::string::npos);
  }
}

TEST(MetricsServerErrors, TheDirectoryOfAUnixSocketIsNotMade) {
  const test::TempDir directory;
  const std::filesystem::path typo = directory.path() / "typo";
  try {
    const MetricsListener listener(parse_metrics_address("unix:" + (typo / "x").string()));
    FAIL() << "it listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_NE(std::string(error.what()).find(typo.string()), std::string::npos) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(typo));
}

TEST(MetricsServerErrors, AUnixSocketIsServedAndRemoved) {
  const test::TempDir directory;
  const std::filesystem::path path = directory.path() / "metrics";
  {
    const MetricsListener listener(parse_metrics_address("unix:" + path.string()));
    const MetricsServer server(listener, [] { return std::string("weightfs_a 1\n"); });
    File socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    path.string().copy(at.sun_path, sizeof at.sun_path - 1);
    ASSERT_EQ(::connect(socket.fd(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    say(socket, "GET /metrics HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(hear(socket).ends_with("weightfs_a 1\n"));
    EXPECT_THROW(MetricsListener(parse_metrics_address("unix:" + path.string())), Error);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace weightfs::fs
