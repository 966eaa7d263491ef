// HttpTransfer: one request as libcurl sees it: its settings, its callbacks, and what its codes
// mean.  Only store/http/client.cpp, which drives it, includes this.
//
// Threads: the sending thread creates it and reads its reply; in between it belongs to the loop.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "store/base/context.hpp"
#include "store/http/message.hpp"

namespace weightfs {

/// The sockets of a client.  They are kept here because libcurl 7.88 reports the socket of a
/// transfer (CURLINFO_ACTIVESOCKET) only after its end.  Threads: the loop's alone.
class HttpSockets {
 public:
  /// "IP:PORT of ours, IP:PORT of the peer": names a connection.
  using Ends = std::string;
  static Ends ends(const char* local_ip, int local_port, const char* peer_ip, int peer_port);

  /// Lets the sockets of a handle be opened and closed here.
  void serve(CURL* easy);
  /// -1: none of that name.
  int find(const Ends& ends);

 private:
  static curl_socket_t open(void* self, curlsocktype, curl_sockaddr* address);
  static int close(void* self, curl_socket_t socket);

  std::map<int, Ends> ends_;  // by descriptor; values are filled on demand
};

class HttpTransfer {
 public:
  /// Requires: all three outlive this.  Throws TransportError (a URL that cannot be used), Error:
  /// invalid (a header that would break the request).
  HttpTransfer(const HttpRequest& request, const HttpOptions& options, HttpSockets& sockets);
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;

  [[nodiscard]] CURL* easy() const noexcept { return easy_.get(); }

  /// "GET https://host/path", for messages: without the query, which may hold a signature.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// Whether no byte moved for HttpOptions::stall_timeout.  Looks at the socket only now and then.
  [[nodiscard]] bool stalled(Clock::time_point now);
  /// When to call stalled() again.
  [[nodiscard]] Clock::time_point look_again_at() const noexcept { return look_again_at_; }

  /// The outcome, from libcurl's code.  Throws as HttpClient::send().
  HttpReply take_reply(CURLcode code);
  [[nodiscard]] TransportError stall_error() const;

 private:
  struct EasyCleanup {
    void operator()(CURL* easy) const noexcept { curl_easy_cleanup(easy); }
  };
  struct ListCleanup {
    void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
  };

  template <typename Value>
  void set(CURLoption option, Value value);
  void check_url() const;
  void set_request();
  void set_headers();
  void add_header(const std::string& line);
  void set_connection();
  void set_callbacks();

  // Callbacks of libcurl, on the loop's thread.
  static int on_begin(void* self, char* peer_ip, char* local_ip, int peer_port, int local_port);
  static std::size_t on_header(char* bytes, std::size_t, std::size_t count, void* self);
  static std::size_t on_body(char* bytes, std::size_t, std::size_t count, void* self);
  static std::size_t on_read(char* into, std::size_t, std::size_t count, void* self);
  static int on_seek(void* self, curl_off_t offset_bytes, int origin);
  void take_header(std::string_view line);
  bool take_body(std::span<const std::byte> bytes);
  void acknowledge_at_once() const;

  [[nodiscard]] std::uint64_t moved_bytes() const;
  [[nodiscard]] TransportError error_of(CURLcode code) const;
  [[nodiscard]] bool has_address() const;
  [[nodiscard]] TransportError error_before_begin(CURLcode code) const;

  const HttpRequest& request_;
  const HttpOptions& options_;
  HttpSockets& sockets_;
  std::string origin_, name_;  // for messages
  std::unique_ptr<curl_slist, ListCleanup> headers_;
  char curl_says_[CURL_ERROR_SIZE] =
      {};  // used for certificates alone: elsewhere it may hold secrets

  HttpReply reply_;
  bool head_ended_ = false;    // the empty line after the headers came
  std::exception_ptr thrown_;  // in a callback
  bool too_much_text_ = false;
  unsigned begun_ = 0;               // how often sending was started
  std::uint64_t read_bytes_ = 0;     // of the body
  std::uint64_t counted_bytes_ = 0;  // that callbacks saw
  int socket_ = -1;
  std::uint64_t moved_last_ = 0;
  Clock::time_point moved_at_ = Clock::time_point::max();
  Clock::time_point look_again_at_ = Clock::time_point::max();

  std::unique_ptr<CURL, EasyCleanup> easy_;  // last: gone before what it points to
};

}  // namespace weightfs
