// HTTP messages: requests, replies, and the error for a missing reply.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/source.hpp"

namespace weightfs {

struct HttpHeader {
  std::string name, value;
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // encoded; sent as it is, never normalised
  std::vector<HttpHeader> headers;

  /// The body: `body_bytes` of `body` from `body_offset` on; null: none.  Owned by the caller until
  /// send() returns; read by the client's thread, possibly twice (a dead connection of the pool).
  const Source* body = nullptr;
  std::uint64_t body_offset = 0, body_bytes = 0;

  /// Where the body of a 2xx reply goes; empty: it is text.  Untouched by other replies.
  std::span<std::byte> into;
  std::size_t text_bytes_max = 4u << 20;  // of text; more is an error
};

struct HttpReply {
  int status = 0;
  std::vector<HttpHeader> headers;  // of the final reply, in its order
  std::string text;                 // the body, unless it went into HttpRequest::into
  std::size_t received_bytes = 0;   // in HttpRequest::into
  bool more = false;                // the body did not fit into HttpRequest::into and was cut off
  bool sent_twice = false;  // a pooled connection died: the first request may have arrived too

  [[nodiscard]] bool ok() const noexcept { return status >= 200 && status < 300; }
  /// The value of a header, by its name in any case, without spaces around it; nullopt: none.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view name) const noexcept;
};

/// No complete reply arrived.  Code: unavailable; permission if a certificate is not trusted;
/// invalid if the URL cannot be used (retrying does not help in the last two).
class TransportError : public Error {
 public:
  enum class Kind { resolve, connect, tls, stalled, broken, other };
  TransportError(ErrorCode code, Kind kind, const std::string& message)
      : Error(code, message), kind_(kind) {}
  [[nodiscard]] Kind kind() const noexcept { return kind_; }

  /// Whether the server may have carried the request out: not if it was never reached.
  [[nodiscard]] bool may_have_arrived() const noexcept {
    return kind_ != Kind::resolve && kind_ != Kind::connect && kind_ != Kind::tls;
  }

 private:
  Kind kind_;
};

struct HttpOptions {
  std::string ca_bundle;  // a file of certificates to trust; empty: see system_certificates.hpp
  std::string ca_variable = "SSL_CERT_FILE";  // what names that file, for messages
  /// For the host's address too: the resolver waits 5 s before it asks the next name server.
  std::chrono::milliseconds connect_timeout{20'000};
  std::chrono::milliseconds stall_timeout{20'000};  // no byte moved in either direction for so long
  unsigned connections_max = 32;                    // to all hosts; more requests wait
  bool http_allowed = false;                        // plain http:// too; else https:// alone
  bool direct = false;                              // never through a proxy of the environment
};

}  // namespace weightfs
