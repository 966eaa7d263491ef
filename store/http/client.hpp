// Http: requests over libcurl's multi interface.  The only home of libcurl.
//
// One thread drives all transfers of a client; connections are kept and used again.  Redirects are
// returned to the caller, never followed: only the caller knows which host may see a credential.
// Of the environment only the proxy variables are used, unless HttpOptions::direct (http_proxy,
// HTTPS_PROXY, ALL_PROXY, NO_PROXY); no netrc, no cookies.
//
// Success for curl means only that bytes arrived: the caller checks status, Content-Range and
// length (curl 7.88 accepts a truncated body as whole if the end of the connection delimits it).
//
// Threads: send() may run in parallel, from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/http/message.hpp"

namespace weightfs {

class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();  // Requires: no send() runs
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Sends a request once and waits for its whole reply, whatever its status.
  /// Throws TransportError; Error: cancelled, timed_out (of `context`); what the body's Source
  /// throws; corrupt (more text than HttpRequest::text_bytes_max).
  HttpReply send(const HttpRequest& request, const Context& context);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace weightfs
