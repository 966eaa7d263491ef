// ChunkPlace: names a chunk of a tensor table.
//
// Threads: a value.
#pragma once

#include <compare>
#include <cstdint>

namespace weightfs {

struct ChunkPlace {
  std::uint32_t tensor = 0;  // index into Layout::tensors()
  std::uint32_t chunk = 0;   // of the tensor

  auto operator<=>(const ChunkPlace&) const = default;
};

}  // namespace weightfs
