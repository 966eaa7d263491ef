#include <xxhash.h>
// The library's own dispatcher is twice as fast with AVX2, and gives the same hashes.  This header,
// which exists only if the library was built with it, makes XXH3_64bits call it.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#include "kernels/simd/simd.hpp"

namespace weightfs::kernels {

std::uint64_t simd::hash_chunk(ByteSpan chunk) noexcept {
  return XXH3_64bits(chunk.data(), chunk.size());
}

}  // namespace weightfs::kernels
