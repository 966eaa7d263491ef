#include "store/format/pack_bytes.hpp"

namespace weightfs {

std::uint64_t pack_bytes(const DeltaRef& delta) noexcept {
  std::uint64_t bytes = 0;
  for (const PackRef& pack : delta.packs) bytes += pack.size_bytes;
  return bytes;
}

}  // namespace weightfs
