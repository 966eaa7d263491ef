#include "store/s3/download.hpp"

#include <fmt/format.h>

#include <array>

#include "store/http/reply_checks.hpp"

namespace weightfs {
namespace {

/// No service has larger objects, and some misread larger numbers.
constexpr std::uint64_t kObjectBytesMax = std::uint64_t{1} << 52;

}  // namespace

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
                    .goes_on = offset_bytes > 0,
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
