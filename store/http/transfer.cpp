#include "store/http/transfer.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <new>
#include <utility>

namespace weightfs {

namespace {

constexpr long kBufferBytes = 512 << 10;         // libcurl 7.88's maximum
constexpr std::uint64_t kExpectBytes = 1 << 20;  // larger bodies use Expect: 100-continue
constexpr long kExpectTimeoutMs = 1'000;

/// "https://host:port" of a URL, without a user name and password.
std::string origin_of(std::string_view url) {
  const std::size_t scheme_end = url.find("://");
  if (scheme_end == std::string_view::npos) return {};
  std::string_view authority = url.substr(scheme_end + 3);
  authority = authority.substr(0, authority.find_first_of("/?#"));
  const std::size_t at = authority.rfind('@');
  if (at != std::string_view::npos) authority.remove_prefix(at + 1);
  return std::string(url.substr(0, scheme_end + 3)).append(authority);
}

/// The path of a URL, as sent.
std::string_view path_of(std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  const std::size_t scheme_end = url.find("://");
  const std::size_t slash =
      scheme_end == std::string_view::npos ? scheme_end : url.find('/', scheme_end + 3);
  return slash == std::string_view::npos ? std::string_view() : url.substr(slash);
}

std::string_view trimmed_header_text(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

std::string ip_and_port(const sockaddr_storage& address) {
  char ip[INET6_ADDRSTRLEN] = {};
  unsigned port = 0;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, ip, sizeof ip);
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, ip, sizeof ip);
    port = ntohs(v6.sin6_port);
  }
  return fmt::format("{}:{}", ip, port);
}

/// Empty if it is not connected.
HttpSockets::Ends ends_of_socket(int socket) {
  sockaddr_storage local{}, peer{};
  socklen_t local_bytes = sizeof local, peer_bytes = sizeof peer;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &local_bytes) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0) {
    return {};
  }
  return ip_and_port(local) + "," + ip_and_port(peer);
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1'000);
}

}  // namespace

// ---- sockets --------------------------------------------------------------------------------

HttpSockets::Ends HttpSockets::ends(const char* local_ip, int local_port, const char* peer_ip,
                                    int peer_port) {
  return fmt::format("{}:{},{}:{}", local_ip, local_port, peer_ip, peer_port);
}

int HttpSockets::find(const Ends& ends) {
  for (auto& [socket, name] : ends_) {
    if (name.empty()) name = ends_of_socket(socket);
    if (name == ends) return socket;
  }
  return -1;
}

/// With O_CLOEXEC, which libcurl 7.88 omits: programs that a hook starts must not inherit the
/// socket.
curl_socket_t HttpSockets::open(void* self, curlsocktype, curl_sockaddr* address) {
  const int socket = ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  if (socket < 0) return CURL_SOCKET_BAD;
  try {
    static_cast<HttpSockets*>(self)->ends_[socket].clear();
  } catch (const std::bad_alloc&) {
    ::close(socket);
    return CURL_SOCKET_BAD;
  }
  return socket;
}

int HttpSockets::close(void* self, curl_socket_t socket) {
  static_cast<HttpSockets*>(self)->ends_.erase(socket);
  return ::close(socket);
}

void HttpSockets::serve(CURL* easy) {
  curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, &HttpSockets::open);
  curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, this);
  curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, &HttpSockets::close);
  curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, this);
}

// ---- settings -------------------------------------------------------------------------------

HttpTransfer::HttpTransfer(const HttpRequest& request, const HttpOptions& options,
                           HttpSockets& sockets)
    : request_(request),
      options_(options),
      sockets_(sockets),
      origin_(origin_of(request.url)),
      name_(fmt::format("{} {}{}", request.method, origin_.empty() ? "(no scheme)" : origin_,
                        path_of(request.url))),
      easy_(curl_easy_init()) {
  if (!easy_) throw std::bad_alloc();
  check_url();
  set_request();
  set_headers();
  set_connection();
  set_callbacks();
}

template <typename Value>
void HttpTransfer::set(CURLoption option, Value value) {
  const CURLcode code = curl_easy_setopt(easy_.get(), option, value);
  if (code == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
  if (code != CURLE_OK) {
    throw Error(ErrorCode::io,
                fmt::format("libcurl rejects the option {}: {}; version 7.87 or later is needed",
                            static_cast<int>(option), curl_easy_strerror(code)));
  }
}

void HttpTransfer::check_url() const {
  const std::string_view url = request_.url;
  const bool https = url.starts_with("https://"), http = url.starts_with("http://");
  const char* wrong = nullptr;
  if (!https && !(http && options_.http_allowed)) {
    wrong = http ? "plain http:// is not allowed here, only https://" : "not an https:// URL";
  } else if (url.find('#') != std::string_view::npos) {
    wrong = "a URL with a fragment (#) cannot be requested";
  }
  if (wrong == nullptr) return;
  throw TransportError(ErrorCode::invalid, TransportError::Kind::connect, name_ + ": " + wrong);
}

void HttpTransfer::set_request() {
  set(CURLOPT_URL, request_.url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  if (request_.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request_.body != nullptr || request_.method == "PUT" || request_.method == "POST") {
    // Even without a body: a PUT or POST then sends Content-Length: 0, which servers require.
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE,
        static_cast<curl_off_t>(request_.body != nullptr ? request_.body_bytes : 0));
    set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
  } else if (request_.method != "GET") {
    set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
  }
}

void HttpTransfer::set_headers() {
  for (const HttpHeader& header : request_.headers) {
    const std::string_view ends_line("\r\n\0", 3);
    if (header.name.find_first_of(ends_line) != std::string::npos ||
        header.value.find_first_of(ends_line) != std::string::npos) {
      throw Error(ErrorCode::invalid, name_ + ": a header has a line break in it");
    }
    // libcurl's notation for a header without a value, as opposed to a header to remove.
    add_header(header.value.empty() ? header.name + ";" : header.name + ": " + header.value);
  }
  // A large upload waits for the server's consent, so that a refused one is not sent in full.
  if (request_.body == nullptr || request_.body_bytes < kExpectBytes) add_header("Expect:");
  set(CURLOPT_HTTPHEADER, headers_.get());
  set(CURLOPT_EXPECT_100_TIMEOUT_MS, kExpectTimeoutMs);
}

void HttpTransfer::add_header(const std::string& line) {
  curl_slist* longer = curl_slist_append(headers_.get(), line.c_str());
  if (longer == nullptr) throw std::bad_alloc();
  if (!headers_) headers_.reset(longer);  // otherwise it is the same list
}

void HttpTransfer::set_connection() {
  set(CURLOPT_PROTOCOLS_STR, options_.http_allowed ? "http,https" : "https");
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout.count()));
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_QUICK_EXIT, 1L);  // an abandoned look-up must not block the loop
  set(CURLOPT_TCP_NODELAY, 1L);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // a proxy's headers are not the reply's
  if (options_.direct) set(CURLOPT_PROXY, "");
  set(CURLOPT_SSL_VERIFYPEER, 1L);
  set(CURLOPT_SSL_VERIFYHOST, 2L);
  set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  if (!options_.ca_bundle.empty()) set(CURLOPT_CAINFO, options_.ca_bundle.c_str());
  // Otherwise the system's certificates would be trusted besides the bundle, and libcurl would read
  // the bundle for each connection (its cache requires a file only).
  set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));
  sockets_.serve(easy_.get());
}

void HttpTransfer::set_callbacks() {
  set(CURLOPT_ERRORBUFFER, curl_says_);
  set(CURLOPT_PREREQFUNCTION, &HttpTransfer::on_begin);
  set(CURLOPT_PREREQDATA, this);
  set(CURLOPT_HEADERFUNCTION, &HttpTransfer::on_header);
  set(CURLOPT_HEADERDATA, this);
  set(CURLOPT_WRITEFUNCTION, &HttpTransfer::on_body);
  set(CURLOPT_WRITEDATA, this);
  set(CURLOPT_READFUNCTION, &HttpTransfer::on_read);
  set(CURLOPT_READDATA, this);
  set(CURLOPT_SEEKFUNCTION, &HttpTransfer::on_seek);
  set(CURLOPT_SEEKDATA, this);
}

// ---- callbacks ------------------------------------------------------------------------------

/// There is a connection; the request is sent next, possibly again.
int HttpTransfer::on_begin(void* self, char* peer_ip, char* local_ip, int peer_port,
                           int local_port) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  try {
    transfer.begun_++;
    transfer.reply_ = {};
    transfer.head_ended_ = false;
    transfer.reply_.sent_twice = transfer.begun_ > 1;
    // libcurl seeks only if it sent part of the body, but it may have read bytes without sending
    // them.
    transfer.read_bytes_ = 0;
    transfer.socket_ =
        transfer.sockets_.find(HttpSockets::ends(local_ip, local_port, peer_ip, peer_port));
    transfer.moved_last_ = transfer.moved_bytes();
    transfer.moved_at_ = Clock::now();
    transfer.look_again_at_ = transfer.moved_at_ + transfer.options_.stall_timeout / 8;
    return CURL_PREREQFUNC_OK;
  } catch (...) {
    transfer.thrown_ = std::current_exception();
    return CURL_PREREQFUNC_ABORT;
  }
}

std::size_t HttpTransfer::on_header(char* bytes, std::size_t, std::size_t count, void* self) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  try {
    transfer.counted_bytes_ += count;
    transfer.take_header({bytes, count});
    return count;
  } catch (...) {
    transfer.thrown_ = std::current_exception();
    return 0;
  }
}

std::size_t HttpTransfer::on_body(char* bytes, std::size_t, std::size_t count, void* self) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  try {
    transfer.counted_bytes_ += count;
    // libcurl cuts what it has received into such parts: behind a whole one more is here already,
    // and the kernel acknowledges what is read from it.
    if (count < CURL_MAX_WRITE_SIZE) transfer.acknowledge_at_once();
    const bool all = transfer.take_body(std::as_bytes(std::span(bytes, count)));
    return all ? count : CURL_WRITEFUNC_ERROR;
  } catch (...) {
    transfer.thrown_ = std::current_exception();
    return CURL_WRITEFUNC_ERROR;
  }
}

std::size_t HttpTransfer::on_read(char* into, std::size_t, std::size_t count, void* self) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  const HttpRequest& request = transfer.request_;
  try {
    const std::uint64_t left =
        request.body == nullptr ? 0 : request.body_bytes - transfer.read_bytes_;
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left, count));
    if (bytes == 0) return 0;
    request.body->read(request.body_offset + transfer.read_bytes_,
                       std::as_writable_bytes(std::span(into, bytes)));
    transfer.read_bytes_ += bytes;
    transfer.counted_bytes_ += bytes;
    return bytes;
  } catch (...) {
    transfer.thrown_ = std::current_exception();
    return CURL_READFUNC_ABORT;
  }
}

int HttpTransfer::on_seek(void* self, curl_off_t offset_bytes, int origin) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  const auto offset = static_cast<std::uint64_t>(offset_bytes);
  if (origin != SEEK_SET || offset > transfer.request_.body_bytes) return CURL_SEEKFUNC_FAIL;
  transfer.read_bytes_ = offset;
  return CURL_SEEKFUNC_OK;
}

void HttpTransfer::take_header(std::string_view line) {
  if (line.starts_with("HTTP/")) {  // also after a 100 Continue
    reply_.headers.clear();
    head_ended_ = false;
    acknowledge_at_once();
    return;
  }
  if (line == "\r\n" || line == "\n") head_ended_ = true;
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  reply_.headers.push_back({std::string(line.substr(0, colon)),
                            std::string(trimmed_header_text(line.substr(colon + 1)))});
}

/// Returns: false if there is too much text.
bool HttpTransfer::take_body(std::span<const std::byte> bytes) {
  long status = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status >= 200 && status < 300 && !request_.into.empty()) {
    const std::span<std::byte> room = request_.into.subspan(reply_.received_bytes);
    const std::size_t fitting = std::min(room.size(), bytes.size());
    if (fitting > 0) std::memcpy(room.data(), bytes.data(), fitting);
    reply_.received_bytes += fitting;
    reply_.more = fitting < bytes.size();
    return !reply_.more;
  }
  too_much_text_ = bytes.size() > request_.text_bytes_max - reply_.text.size();
  if (!too_much_text_) {
    reply_.text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return !too_much_text_;
}

/// Ceph's gateway sends the header and the body of a reply in two packets, and the second only
/// after an acknowledgement of the first (Nagle's algorithm), which the kernel delays by 40 ms.
/// The option is not sticky.
void HttpTransfer::acknowledge_at_once() const {
  const int on = 1;
  if (socket_ >= 0) setsockopt(socket_, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

// ---- stalls ---------------------------------------------------------------------------------

/// Bytes moved on the connection in both directions.  The kernel knows more than libcurl: megabytes
/// may be in its buffers, and on a slow line they take long.
std::uint64_t HttpTransfer::moved_bytes() const {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (socket_ >= 0) getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &bytes);
  return counted_bytes_ + info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

bool HttpTransfer::stalled(Clock::time_point now) {
  if (now < look_again_at_)
    return false;  // also if nothing has begun: then connect_timeout
                   // applies
  look_again_at_ = now + options_.stall_timeout / 8;
  if (const std::uint64_t moved = moved_bytes(); moved != moved_last_) {
    moved_last_ = moved;
    moved_at_ = now;
  }
  return now - moved_at_ >= options_.stall_timeout;
}

TransportError HttpTransfer::stall_error() const {
  return {
      ErrorCode::unavailable, TransportError::Kind::stalled,
      fmt::format("{}: no data transferred for {}", name_, seconds_text(options_.stall_timeout))};
}

// ---- ends -----------------------------------------------------------------------------------

HttpReply HttpTransfer::take_reply(CURLcode code) {
  if (thrown_) std::rethrow_exception(thrown_);
  if (too_much_text_) {
    throw Error(ErrorCode::corrupt, fmt::format("{}: the reply has more than {} bytes of text",
                                                name_, request_.text_bytes_max));
  }
  // libcurl 7.88 accepts a connection that ends within the headers.
  if (code == CURLE_OK && !head_ended_) code = CURLE_PARTIAL_FILE;
  if (code != CURLE_OK && !reply_.more) throw error_of(code);
  long status = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
  reply_.status = static_cast<int>(status);
  return std::move(reply_);
}

TransportError HttpTransfer::error_of(CURLcode code) const {
  if (begun_ == 0) return error_before_begin(code);
  // Also if a fresh connection failed after a pooled one had died: the request may have arrived
  // through the pooled one.
  const char* why = curl_easy_strerror(code);
  switch (code) {
    case CURLE_PARTIAL_FILE:
      why = "the connection ended before the reply did";
      break;
    case CURLE_GOT_NOTHING:
      why = "the server closed the connection without a reply";
      break;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
      why = "the connection broke";
      break;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
      why = "the reply is not HTTP/1.1";
      break;
    default:
      break;
  }
  return {ErrorCode::unavailable, TransportError::Kind::broken, name_ + ": " + why};
}

/// Whether the host's name, or the proxy's, was resolved.
bool HttpTransfer::has_address() const {
  curl_off_t resolved_us = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_NAMELOOKUP_TIME_T, &resolved_us);
  return resolved_us > 0;
}

TransportError HttpTransfer::error_before_begin(CURLcode code) const {
  using Kind = TransportError::Kind;
  const auto unreachable = [&](Kind kind, const std::string& why) {
    return TransportError(ErrorCode::unavailable, kind, "cannot reach " + origin_ + ": " + why);
  };
  long number = 0;
  switch (code) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_LOGIN_DENIED:  // libcurl 7.88's code for a user name in the URL
      return {ErrorCode::invalid, Kind::connect,
              name_ + ": not a valid request URL (no user name, no spaces)"};
    case CURLE_COULDNT_RESOLVE_HOST:
      return unreachable(Kind::resolve, "the host name cannot be resolved");
    case CURLE_COULDNT_RESOLVE_PROXY:
      return unreachable(Kind::resolve,
                         "the proxy's host name cannot be resolved (HTTPS_PROXY, ALL_PROXY)");
    case CURLE_OPERATION_TIMEDOUT:
      if (!has_address()) return unreachable(Kind::resolve, "the name server does not answer");
      return unreachable(Kind::connect,
                         "no connection after " + seconds_text(options_.connect_timeout));
    case CURLE_PEER_FAILED_VERIFICATION:
      return {ErrorCode::permission, Kind::tls,
              fmt::format(
                  "the certificate of {} is not trusted: {}; set {} to a file with its issuer's "
                  "certificate",
                  origin_, curl_says_, options_.ca_variable)};
    case CURLE_SSL_CACERT_BADFILE:
      return {ErrorCode::invalid, Kind::tls,
              fmt::format("cannot read certificates from {} ({})",
                          options_.ca_bundle.empty() ? "the system's file" : options_.ca_bundle,
                          options_.ca_variable)};
    case CURLE_SSL_CONNECT_ERROR:
      return unreachable(Kind::tls, fmt::format("no TLS connection: {}", curl_says_));
    case CURLE_COULDNT_CONNECT:
      curl_easy_getinfo(easy_.get(), CURLINFO_OS_ERRNO, &number);
      if (number == 0) return unreachable(Kind::connect, "no connection");
      {
        char buffer[128];
        std::string why = strerror_r(static_cast<int>(number), buffer, sizeof buffer);
        why.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(why.front())));
        return unreachable(Kind::connect, why);
      }
    default:
      curl_easy_getinfo(easy_.get(), CURLINFO_HTTP_CONNECTCODE, &number);
      if (number != 0) {
        return unreachable(Kind::connect, fmt::format("the proxy answered {}", number));
      }
      return unreachable(Kind::connect, curl_easy_strerror(code));
  }
}

}  // namespace weightfs
