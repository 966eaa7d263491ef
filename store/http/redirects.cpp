#include "store/http/redirects.hpp"

#include <fmt/format.h>

namespace weightfs {
namespace {

constexpr std::size_t kKeptMax = 4096;  // URLs; dropped ones are requested again

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

std::optional<std::string> Redirects::find(std::string_view key, bool goes_on) const {
  const std::lock_guard lock(mutex_);
  const auto kept = urls_.find(key);
  if (kept == urls_.end()) return std::nullopt;
  if (kept->second.holds == Holds::for_rest && !goes_on) return std::nullopt;
  return kept->second.url;
}

void Redirects::keep(std::string_view key, std::string url, Holds holds) {
  const std::lock_guard lock(mutex_);
  if (urls_.size() >= kKeptMax) urls_.clear();
  urls_.insert_or_assign(std::string(key), Kept{std::move(url), holds});
}

void Redirects::forget(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto kept = urls_.find(key);
  if (kept != urls_.end()) urls_.erase(kept);
}

std::optional<std::string> Redirects::next(const HttpReply& reply, std::string_view from) const {
  if (!is_redirect(reply.status)) return std::nullopt;
  const auto location = reply.find("Location");
  if (!location) throw Error(ErrorCode::unavailable, "a redirect has no Location");
  std::string url(*location);
  if (url.starts_with('/') && !url.starts_with("//")) {
    url = std::string(from.substr(0, from.find('/', from.find("://") + 3))) + url;
  }
  // Signed URLs are secrets, so the message shows none.
  if (url.starts_with("https://") || (http_allowed_ && url.starts_with("http://"))) return url;
  throw Error(ErrorCode::unavailable, "a redirect does not lead to https://");
}

}  // namespace weightfs
