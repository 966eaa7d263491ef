#include "kernels/block/xxh3.hpp"
#include "kernels/scalar/scalar.hpp"

namespace weightfs::kernels {

std::uint64_t scalar::hash_chunk(ByteSpan chunk) noexcept {
  return xxh3::hash(reinterpret_cast<const std::uint8_t*>(chunk.data()), chunk.size());
}

}  // namespace weightfs::kernels
