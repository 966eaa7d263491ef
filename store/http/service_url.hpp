// ServiceUrl: the URL of an HTTP service, checked and in its parts.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace weightfs {

/// A URL of a service, in its parts.
struct ServiceUrl {
  std::string scheme_and_host;  // "https://host[:port]", in lower case
  std::string host;             // without port; IPv6 without brackets
  std::string path;             // "" or "/x", without '/' at its end; still encoded
  [[nodiscard]] bool is_plain() const noexcept { return scheme_and_host.starts_with("http:"); }
};

/// `what` names it in messages: "--endpoint-url".  Throws Error: invalid (no http or https URL,
/// user:password@, a query or fragment, spaces).
ServiceUrl parse_service_url(const std::string& url, std::string_view what);

}  // namespace weightfs
