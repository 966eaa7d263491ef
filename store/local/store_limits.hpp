// StoreLimits: how much disk a store may take.
#pragma once

#include <cstdint>
#include <optional>

namespace weightfs {

struct StoreLimits {
  /// Bytes of images to keep; nullopt: 3 x the newest version.
  std::optional<std::uint64_t> store_bytes;
  /// Free bytes to leave on the file system; nullopt: the smaller of 5 % and 10 GiB.  Never less
  /// than kRecordsFloorBytes, because what is written must then be recorded.
  std::optional<std::uint64_t> free_bytes_min;
};

/// Sizes are clamped to this, so that sums of a few of them cannot overflow.
inline constexpr std::uint64_t kSizeBytesMax = 1ull << 60;

}  // namespace weightfs
