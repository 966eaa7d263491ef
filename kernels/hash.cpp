#include "kernels/hash.hpp"

#include "kernels/scalar.hpp"
#include "kernels/simd.hpp"
#include "kernels/variant.hpp"
#include "kernels/xxh3.hpp"
#ifdef WEIGHTFS_XXHASH
#include <xxhash.h>
// The library's own dispatcher is twice as fast where there is AVX2, and gives the same hashes;
// this header, which exists only where the library was built with it, makes XXH3_64bits call it.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif
#endif

namespace weightfs::kernels {

std::uint64_t scalar::hash_chunk(ByteSpan chunk) noexcept {
  return xxh3::hash(reinterpret_cast<const std::uint8_t*>(chunk.data()), chunk.size());
}

std::uint64_t simd::hash_chunk(ByteSpan chunk) noexcept {
#ifdef WEIGHTFS_XXHASH
  return XXH3_64bits(chunk.data(), chunk.size());
#else
  return scalar::hash_chunk(chunk);
#endif
}

std::uint64_t hash_chunk(ByteSpan chunk) noexcept { return chosen_variant().hash_chunk(chunk); }

}  // namespace weightfs::kernels
