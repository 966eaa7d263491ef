// HttpClient: failures, deadlines and stops, TLS, acknowledgements.
#include <gtest/gtest.h>
#include <net/if.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "store/http/client.hpp"
#include "store/os/file.hpp"
#include "tests/store/http/client_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/support.hpp"

using namespace weightfs;
using namespace weightfs::test;
using namespace std::chrono_literals;

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
  // Longer than a label may be, so no name server is asked.
  const std::string url = "http://" + std::string(64, 'x') + ".invalid";
  const TransportError error = transport_error_of(client, get_of(url + "/key"));
  EXPECT_EQ(std::string(error.what()),
            "cannot reach " + url + ": the host name cannot be resolved");
  EXPECT_EQ(error.kind(), TransportError::Kind::resolve);
  EXPECT_FALSE(error.may_have_arrived());
}

/// Runs `body` in a thread that sees other name servers.  Returns: whether it may.
bool with_name_servers(const std::string& resolv_conf, const std::function<void()>& body) {
  const TempDir directory;
  write_text(directory / "resolv.conf", resolv_conf);
  bool may = false;
  std::jthread([&] {
    may = unshare(CLONE_NEWNS) == 0 && mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) == 0 &&
          mount((directory / "resolv.conf").c_str(), "/etc/resolv.conf", "", MS_BIND, nullptr) == 0;
    if (may) body();
  }).join();
  return may;
}

/// The socket of a name server; none if the port is not to be had.
File open_name_server(const char* ip) {
  File opened(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(53);
  inet_pton(AF_INET, ip, &address.sin_addr);
  const int failed = bind(opened.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  return failed == 0 ? std::move(opened) : File();
}

/// Whoever asks for an address is told that it is 127.0.0.1.
std::string answer_of_name_server(const std::string& query) {
  constexpr std::size_t kHeadBytes = 12;
  const std::size_t name_end = query.find('\0', kHeadBytes);
  const bool is_ipv4 = query.at(name_end + 2) == 1;  // A, not AAAA
  std::string answer = query.substr(0, name_end + 5);
  const char head[] = {'\x81', '\x80', 0, 1, 0, is_ipv4 ? '\1' : '\0', 0, 0, 0, 0};
  answer.replace(2, sizeof head, head, sizeof head);
  const char address[] = {'\xC0', 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1};
  if (is_ipv4) answer.append(address, sizeof address);
  return answer;
}

void serve_names(const File& server, const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd ready{.fd = server.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 20) <= 0) continue;
    std::string query(512, '\0');
    sockaddr_storage from{};
    socklen_t bytes = sizeof from;
    auto* const peer = reinterpret_cast<sockaddr*>(&from);
    const ssize_t size = recvfrom(server.fd(), query.data(), query.size(), 0, peer, &bytes);
    if (size <= 12) continue;
    query.resize(static_cast<std::size_t>(size));
    const std::string answer = answer_of_name_server(query);
    (void)sendto(server.fd(), answer.data(), answer.size(), 0, peer, bytes);
  }
}

TEST_F(Http, a_name_server_that_does_not_answer_is_told) {
  const File silent = open_name_server("127.0.0.153");
  if (!silent) GTEST_SKIP() << "port 53 is not to be had";
  const bool may = with_name_servers("nameserver 127.0.0.153\noptions timeout:2 attempts:1\n", [] {
    HttpOptions options = plain_options();
    options.connect_timeout = 200ms;
    HttpClient client(options);
    const TransportError error = transport_error_of(client, get_of("http://bucket.example/key"));
    EXPECT_EQ(std::string(error.what()),
              "cannot reach http://bucket.example: the name server does not answer");
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_EQ(error.kind(), TransportError::Kind::resolve);
  });
  if (!may) GTEST_SKIP() << "no mount namespace to be had";
}

// The resolver waits 5 s for the first name server, which was the limit: a host whose first one was
// down never reached its bucket.
TEST_F(Http, there_is_time_for_a_second_name_server) {
  const File silent = open_name_server("127.0.0.153"), second = open_name_server("127.0.0.154");
  if (!silent || !second) GTEST_SKIP() << "port 53 is not to be had";
  const std::jthread serving([&](const std::stop_token& stop) { serve_names(second, stop); });
  const HttpServer server([](const ServedRequest&) { return ServedReply{.body = "here"}; });
  const bool may = with_name_servers("nameserver 127.0.0.153\nnameserver 127.0.0.154\n", [&] {
    HttpClient client(plain_options());
    const std::string url = "http://bucket.example:" + std::to_string(server.port());
    HttpReply reply;
    EXPECT_NO_THROW(reply = client.send(get_of(url + "/key"), {}));
    EXPECT_EQ(reply.text, "here");
    char query = 0;
    EXPECT_EQ(recv(silent.fd(), &query, 1, MSG_DONTWAIT), 1) << "the first one was not asked";
  });
  if (!may) GTEST_SKIP() << "no mount namespace to be had";
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
  // On a busy machine the first may not have come so far.
  EXPECT_LE(server.connections(), 1u) << "too late before it began";
}

TEST_F(Http, stops_while_the_server_is_silent) {
  std::atomic<int> asked{0};
  HttpServer server([&](const ServedRequest& request) {
    asked++;
    return ServedReply{.silent = request.target == "/silent"};
  });
  HttpOptions options = plain_options();
  // The connection exists and the limits are far away, so only the stop wakes the client.
  options.connect_timeout = options.stall_timeout = 1h;
  HttpClient client(options);
  EXPECT_EQ(client.send(get_of(server.url()), {}).status, 200);
  std::stop_source stop;
  const Clock::time_point limit = Clock::now() + 30s;  // it checks once a minute anyway
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

/// The caller frees its buffers when send() returns; sanitizers detect later writes.
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

/// Slower than any speed limit would allow, but alive.
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

/// A self-signed certificate for a host ("IP:127.0.0.1").
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

/// For the server, because OpenSSL writes without MSG_NOSIGNAL.
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
    EXPECT_TRUE(contains(error.what(), "set SSL_CERT_FILE to a file")) << error.what();
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

TEST_F(Http, certificates_are_trusted_that_the_environment_names) {
  const WithoutSigpipe without_sigpipe;
  const SelfSigned identity("IP:127.0.0.1");
  std::atomic<unsigned> answered{0};
  RawServer server(tls_script(identity, answered));
  const TempDir directory;
  write_text(directory / "ca.pem", identity.pem());
  ::setenv("SSL_CERT_FILE", (directory / "ca.pem").c_str(), 1);
  HttpClient client(HttpOptions{});
  ::unsetenv("SSL_CERT_FILE");
  EXPECT_EQ(client.send(get_of(server.url("https") + "/key"), {}).text, "secret");
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
            "cannot read certificates from /no/such/bundle.pem (SSL_CERT_FILE)");
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

/// A counter of /proc/net/netstat in this process's network namespace.
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

/// The number of delayed acknowledgements, as an exit status.
int count_delayed_acknowledgements() {
  if (!enter_own_network()) return kSkipped;
  const long before = tcp_counter("DelayedACKs");
  if (before < 0) return kSkipped;
  RawServer server([](int socket, unsigned) {
    while (!receive_head(socket).empty()) {
      send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
      send_text(socket, "body");  // sent only after the header was acknowledged
    }
  });
  HttpClient client(plain_options());
  for (int i = 0; i < kRequestsOfQuickAckTest; i++) client.send(get_of(server.url()), {});
  return static_cast<int>(std::min(tcp_counter("DelayedACKs") - before, 76l));
}

}  // namespace

/// Ceph's gateway answers in two packets, and sends the second one only after the acknowledgement
/// of the first. If that is delayed, every GET takes 40 ms longer.
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
  // Some may be the server's, on a machine where its thread has to wait long.
  EXPECT_LT(WEXITSTATUS(status), kRequestsOfQuickAckTest / 2);
}
