// HttpServer: a small HTTP/1.1 server on 127.0.0.1 whose replies are written by the test, including
// those that no proper server sends: truncated bodies, wrong ranges, silence, resets.
//
// Threads: one for each connection; the handler may run in parallel and guards its own state.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/http/client.hpp"

namespace weightfs::test {

struct ServedRequest {
  std::string method, target;                  // as on the wire: "/a%20b?x=1"
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  unsigned connection = 0;                                         // its number, from 1 on
  [[nodiscard]] std::string path() const;                          // decoded, without the query
  [[nodiscard]] std::map<std::string, std::string> query() const;  // decoded
};

struct ServedReply {
  int status = 200;
  std::vector<HttpHeader> headers = {};
  std::string body = {};

  bool no_length = false;            // no Content-Length: the body ends with the connection
  std::size_t cut_after = SIZE_MAX;  // closes the connection after this many bytes of the body
  bool reset = false;                // resets the connection (RST) there instead of closing it
  bool silent = false;  // never replies: waits until the server ends or the peer leaves
};

class HttpServer {
 public:
  using Handler = std::function<ServedReply(const ServedRequest&)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();                          // ends all connections
  [[nodiscard]] std::string url() const;  // "http://127.0.0.1:PORT"
  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] unsigned connections() const noexcept;  // accepted so far

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs::test
