// Engine HTTP: JSON requests to one engine.  Errors name the request and the answer.
//
// Threads: one call at a time; the client is shared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/http/client.hpp"

namespace weightfs::fs {

/// A client for engines.  A reload may take minutes without sending a byte, so only deadlines end a
/// request.
HttpOptions engine_http_options();

/// An answer that is no success.  Code: io.
class EngineError : public Error {
 public:
  EngineError(int status, const std::string& message)
      : Error(ErrorCode::io, message), status_(status) {}
  [[nodiscard]] int status() const noexcept { return status_; }

  /// Whether it may be that of a proxy which got none from the engine, or did not wait for it: 502,
  /// 503, 504.  The engine may be at work.
  [[nodiscard]] bool is_of_proxy() const noexcept { return status_ >= 502 && status_ <= 504; }

 private:
  int status_;
};

class EngineHttp {
 public:
  /// `token_file`: read before each request, so that it can be replaced; empty: no token is sent.
  EngineHttp(HttpClient& client, std::string url, std::filesystem::path token_file);

  /// Sends a request and returns whatever the engine answers.
  /// Throws TransportError, Error: see HttpClient::send; what reading the token file throws.
  [[nodiscard]] HttpReply get(std::string_view path, const Context& context) const;
  [[nodiscard]] HttpReply post(std::string_view path, const Json* body,
                               const Context& context) const;

  /// The reply's JSON object; empty if the reply is something else.
  [[nodiscard]] static Json object_of(const HttpReply& reply);

  /// Throws EngineError unless the reply is 2xx without {"success": false}: "URL/PATH answers 500:
  /// TEXT; HINT".
  void check(const HttpReply& reply, std::string_view path, std::string_view hint) const;

 private:
  [[nodiscard]] HttpReply send(std::string_view path, const Json* body, const char* method,
                               const Context& context) const;
  HttpClient& client_;
  const std::string url_;
  const std::filesystem::path token_file_;
};

/// The version in `object[name]`, a string or a number; 0: the field is not a version of weightfs;
/// nullopt: there is no such field.
std::optional<std::uint64_t> find_version(const Json& object, const char* name);

/// A number in the form that weightfs writes; 0 if `text` is something else.
std::uint64_t version_of_text(std::string_view text) noexcept;

}  // namespace weightfs::fs
