// Unpin request: which pins to end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weightfs::fs {

/// What `weightfs unpin` ends; all pins if nothing is given.
struct UnpinRequest {
  std::optional<std::uint64_t> version = {};
  std::optional<std::string> session = {};
};

}  // namespace weightfs::fs
