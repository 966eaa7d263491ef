// Redirects: where a service redirects reads: the Hugging Face Hub and its S3 gateway answer a GET
// with a signed URL of their CDN, which works for many ranges of the file, until it answers 403.
// Such a URL names content: after an object was overwritten it leads to the bytes of before.
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

  enum class Holds {
    for_all,  // for every read of the object
    for_rest  // for what goes on where another read ended: the object may be overwritten
  };

  /// `goes_on`: the read does not begin at the object's first byte.
  [[nodiscard]] std::optional<std::string> find(std::string_view key, bool goes_on = true) const;
  void keep(std::string_view key, std::string url, Holds holds = Holds::for_all);
  void forget(std::string_view key);

  /// The target of `reply`, to a request to `from`; nullopt: it is not a redirect.
  /// Throws Error: unavailable, for a redirect without Location, or to plain http if the endpoint
  /// is https.
  [[nodiscard]] std::optional<std::string> next(const HttpReply& reply,
                                                std::string_view from) const;

 private:
  struct Kept {
    std::string url;
    Holds holds{};
  };

  const bool http_allowed_;
  mutable RankedMutex mutex_{LockRank::leaf, "Redirects::mutex_"};  // guards urls_
  std::map<std::string, Kept, std::less<>> urls_;
};

}  // namespace weightfs
