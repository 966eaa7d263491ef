#include "store/s3/download.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace weightfs {
namespace {

/// No service has larger objects, and some misread larger numbers.
constexpr std::uint64_t kObjectBytesMax = std::uint64_t{1} << 52;

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

std::size_t s3_get(S3Client& client, std::string_view key, std::uint64_t offset_bytes,
                   std::span<std::byte> into, const Context& context) {
  // An empty read still checks that the object exists, by reading its first byte.
  std::array<std::byte, 1> probe{};
  const bool only_probe = into.empty() || offset_bytes > kObjectBytesMax;
  if (only_probe) {
    into = probe;
    offset_bytes = 0;
  }
  const S3Call call{.action = "read",
                    .key = key,
                    .target = client.address().object(key),
                    .headers = {{"Range", fmt::format("bytes={}-{}", offset_bytes,
                                                      offset_bytes + into.size() - 1)}},
                    .into = into,
                    .follow = true,
                    .expected = {416},
                    .problem = [&](const HttpReply& reply) {
                      // For a probe an ignored range does no harm.
                      if (only_probe && reply.status == 200) return std::string();
                      return range_problem(reply, offset_bytes, into.size());
                    }};
  const HttpReply reply = client.send(call, context).reply;
  return only_probe || reply.status == 416 ? 0 : reply.received_bytes;
}

}  // namespace weightfs
