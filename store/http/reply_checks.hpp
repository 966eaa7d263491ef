// Reply checks: what the headers of a reply say, and whether they say what was asked for.
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/http/message.hpp"

namespace weightfs {

/// A service's text for a message, which is one line: cut, and without control characters.
std::string printable(std::string_view text);

/// What is wrong with the answer to a request for bytes [offset_bytes, offset_bytes + size_bytes);
/// empty: nothing.
std::string range_problem(const HttpReply& reply, std::uint64_t offset_bytes,
                          std::uint64_t size_bytes);

/// The size of the whole object that such an answer is of; nullopt: it does not say.
std::optional<std::uint64_t> find_whole_size(const HttpReply& reply);

/// "Sun, 06 Nov 1994 08:49:37 GMT"; nullopt: it is none, or of a year outside 1970
/// to 2200.  strptime() depends on the locale.
std::optional<std::chrono::system_clock::time_point> parse_http_date(std::string_view text);

/// Retry-After, in seconds or as a date (by the server's clock); nullopt: none.
std::optional<std::chrono::seconds> find_retry_after(const HttpReply& reply);

}  // namespace weightfs
