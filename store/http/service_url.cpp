#include "store/http/service_url.hpp"

#include <algorithm>
#include <charconv>

#include "store/base/error.hpp"

namespace weightfs {
namespace {

[[noreturn]] void refuse_url(const std::string& url, std::string_view what,
                             const std::string& problem) {
  // The part before an '@' may be a password, and the part after a '?' a token.
  const std::string whole = url.substr(0, url.find('?'));
  const std::size_t at = whole.rfind('@');
  const std::string shown = at == std::string::npos ? whole : "..." + whole.substr(at);
  throw Error(ErrorCode::invalid, std::string(what) + ": '" + shown + "' " + problem);
}

// "host", "host:port", "[v6]", "[v6]:port".
std::string host_without_port(const std::string& url, std::string_view what,
                              const std::string& authority) {
  const bool is_v6 = authority.starts_with('[');
  const std::size_t end =
      is_v6 ? authority.find(']') + 1 : std::min(authority.find(':'), authority.size());
  const std::string host =
      is_v6 && end > 0 ? authority.substr(1, end - 2) : authority.substr(0, end);
  if (host.empty()) refuse_url(url, what, "names no host");
  if (end == authority.size()) return host;
  const char* const port = authority.data() + end + 1;
  unsigned number = 0;
  const auto [last, error] = std::from_chars(port, authority.data() + authority.size(), number);
  if (authority[end] != ':' || error != std::errc() || number == 0 || number > 65535 ||
      last != authority.data() + authority.size()) {
    refuse_url(url, what, "has no port from 1 to 65535 after its ':'");
  }
  return host;
}

}  // namespace

ServiceUrl parse_service_url(const std::string& url, std::string_view what) {
  const std::size_t colon = url.find("://");
  std::string scheme = url.substr(0, std::min(colon, url.size()));
  const auto lower = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return text;
  };
  scheme = lower(scheme);
  if (colon == std::string::npos || (scheme != "https" && scheme != "http")) {
    refuse_url(url, what, "is not a URL: expected https://HOST or http://HOST");
  }
  for (const char c : url) {
    if (c <= ' ' || c == 0x7F || c == '\\') refuse_url(url, what, "has a space or '\\' in it");
  }
  if (url.find_first_of("?#") != std::string::npos) {
    refuse_url(url, what, "has a query or fragment: expected a host and a path at most");
  }
  const std::size_t path = std::min(url.find('/', colon + 3), url.size());
  const std::string authority = lower(url.substr(colon + 3, path - colon - 3));
  if (authority.find('@') != std::string::npos) {
    refuse_url(url, what, "names a user: keys come from the environment or a profile");
  }
  ServiceUrl parts{scheme + "://" + authority, host_without_port(url, what, authority),
                   url.substr(path)};
  while (parts.path.ends_with('/')) parts.path.pop_back();
  return parts;
}

}  // namespace weightfs
