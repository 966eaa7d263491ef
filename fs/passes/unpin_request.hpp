// Unpin request: which pins are to end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weightfs::fs {

/// What `weightfs unpin` ends; nothing given: all.
struct UnpinRequest {
  std::optional<std::uint64_t> version = {};
  std::optional<std::string> session = {};
};

}  // namespace weightfs::fs
