// Hash: XXH3-64 of decoded bytes, which guards against accidents. (The SHA-256 of coded bytes,
// below the manifest, guards against attacks.)
//
// Variants: `scalar` is kernels/block/xxh3.hpp, from the specification; the others use libxxhash,
// which has its own dispatcher.  The functions here call the chosen one
// (kernels/block/variant.hpp).
//
// Source: xxHash 0.8, XXH3_64bits with seed 0.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block/block.hpp"

namespace weightfs::kernels {

/// The hash of one chunk.
std::uint64_t hash_chunk(ByteSpan chunk) noexcept;

}  // namespace weightfs::kernels
