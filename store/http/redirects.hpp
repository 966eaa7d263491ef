// Redirects: where a service redirects reads: the Hugging Face Hub and its S3 gateway answer a GET
// with a signed URL of their CDN, which works for many ranges of the file, until it answers 403.
//
// Threads: all calls may run in parallel.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/ranked_mutex.hpp"
#include "store/http/message.hpp"

namespace weightfs {

inline constexpr unsigned kRedirectsMax = 3;  // in a row

class Redirects {
 public:
  explicit Redirects(bool http_allowed) : http_allowed_(http_allowed) {}

  [[nodiscard]] std::optional<std::string> find(std::string_view key) const;
  void keep(std::string_view key, std::string url);
  void forget(std::string_view key);

  /// The target of `reply`, to a request to `from`; nullopt: it is not a redirect.
  /// Throws Error: unavailable, for a redirect without Location, or to plain http if the endpoint
  /// is https.
  [[nodiscard]] std::optional<std::string> next(const HttpReply& reply,
                                                std::string_view from) const;

 private:
  const bool http_allowed_;
  mutable RankedMutex mutex_{LockRank::leaf, "Redirects::mutex_"};  // guards urls_
  std::map<std::string, std::string, std::less<>> urls_;
};

}  // namespace weightfs
