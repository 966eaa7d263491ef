#include "store/http/reply_checks.hpp"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <ctime>

namespace weightfs {
namespace {

using std::chrono::system_clock;

constexpr std::size_t kMessageBytesMax = 300;           // of a service's message
constexpr int kYearMin = 1970, kYearMax = 2200;         // a time_point ends in 2262
constexpr std::uint64_t kRetryAfterSecondsMax = 86400;  // more is no number to be trusted

/// "bytes 0-9/100", "bytes 0-9/*", "bytes */100".
struct ContentRange {
  std::optional<std::uint64_t> first, last, total;
};

std::optional<std::uint64_t> parse_decimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

ContentRange parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  ContentRange range;
  if (!text.starts_with(kUnit)) return range;
  text.remove_prefix(kUnit.size());
  const std::size_t slash = text.find('/');
  if (slash == text.npos) return range;
  range.total = parse_decimal(text.substr(slash + 1));
  const std::string_view both = text.substr(0, slash);
  const std::size_t dash = both.find('-');
  if (dash == both.npos) return range;
  range.first = parse_decimal(both.substr(0, dash));
  range.last = parse_decimal(both.substr(dash + 1));
  return range;
}

std::string partial_problem(const HttpReply& reply, std::uint64_t offset, std::uint64_t size) {
  const std::string text(reply.find("Content-Range").value_or("none"));
  const ContentRange range = parse_content_range(text);
  const std::uint64_t end = offset + size;  // end of the requested range
  const bool fits = range.first == offset && range.last && *range.last >= offset &&
                    *range.last < end && (*range.last + 1 == end || range.total == *range.last + 1);
  if (!fits) {
    return fmt::format("requested bytes {} to {}, but the answer has the Content-Range {}", offset,
                       end, text);
  }
  const std::uint64_t expected = *range.last + 1 - offset;
  if (reply.more || reply.received_bytes != expected) {
    return fmt::format("received {} of {} bytes", reply.received_bytes, expected);
  }
  return "";
}

/// Checks a reply with a whole object: valid only if it is the requested range.
std::string whole_problem(const HttpReply& reply, std::uint64_t offset) {
  if (offset != 0 || reply.more) return "the service ignores Range and sent the whole object";
  const auto length = reply.find("Content-Length");
  if (!length) return "the answer has no Content-Length";
  if (parse_decimal(*length) != reply.received_bytes) {
    return fmt::format("received {} of {} bytes", reply.received_bytes, *length);
  }
  return "";
}

std::string behind_problem(const HttpReply& reply, std::uint64_t offset) {
  const auto text = reply.find("Content-Range");
  if (!text) return "";
  const ContentRange range = parse_content_range(*text);
  if (!range.total || *range.total <= offset) return "";
  return fmt::format("the service says that there is nothing at byte {} of {}", offset,
                     *range.total);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string line(text.substr(0, kMessageBytesMax));
  for (char& c : line) {
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = ' ';
  }
  return line;
}

std::string range_problem(const HttpReply& reply, std::uint64_t offset_bytes,
                          std::uint64_t size_bytes) {
  switch (reply.status) {
    case 206:
      return partial_problem(reply, offset_bytes, size_bytes);
    case 200:
      return whole_problem(reply, offset_bytes);
    case 416:
      return behind_problem(reply, offset_bytes);
    default:
      return fmt::format("{} is not a valid answer to a range request", reply.status);
  }
}

std::optional<std::uint64_t> find_whole_size(const HttpReply& reply) {
  if (const auto range = reply.find("Content-Range")) return parse_content_range(*range).total;
  const auto length = reply.find("Content-Length");
  return length && reply.status == 200 ? parse_decimal(*length) : std::nullopt;
}

std::optional<system_clock::time_point> parse_http_date(std::string_view text) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  std::tm parts{};
  std::array<char, 4> month{};
  const std::string line(text);
  if (std::sscanf(line.c_str(), "%*3s, %2d %3s %4d %2d:%2d:%2d GMT", &parts.tm_mday, month.data(),
                  &parts.tm_year, &parts.tm_hour, &parts.tm_min, &parts.tm_sec) != 6) {
    return std::nullopt;
  }
  const std::size_t at = kMonths.find(month.data());
  if (at == kMonths.npos || at % 3 != 0) return std::nullopt;
  if (parts.tm_year < kYearMin || parts.tm_year > kYearMax) return std::nullopt;
  parts.tm_mon = static_cast<int>(at / 3);
  parts.tm_year -= 1900;
  return system_clock::from_time_t(::timegm(&parts));
}

std::optional<std::chrono::seconds> find_retry_after(const HttpReply& reply) {
  const auto text = reply.find("Retry-After");
  if (!text) return std::nullopt;
  if (const auto seconds = parse_decimal(*text); seconds && *seconds <= kRetryAfterSecondsMax) {
    return std::chrono::seconds(*seconds);
  }
  const auto until = parse_http_date(*text);
  const auto date = reply.find("Date");
  const auto now = date ? parse_http_date(*date) : std::nullopt;
  if (!until || !now || *until < *now) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::seconds>(*until - *now);
}

}  // namespace weightfs
