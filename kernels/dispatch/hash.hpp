// Hash: XXH3-64 of decoded bytes, the guard against accidents (not against attack: that is the
// SHA-256 of coded bytes below the manifest).
//
// Variants: `scalar` is kernels/block/xxh3.hpp, from the specification; the others are libxxhash's,
// which has a dispatcher of its own.  The functions here call the chosen one
// (kernels/block/variant.hpp).
//
// Source: xxHash 0.8, XXH3_64bits with seed 0.  Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block/block.hpp"

namespace weightfs::kernels {

/// Hash of one chunk.
std::uint64_t hash_chunk(ByteSpan chunk) noexcept;

}  // namespace weightfs::kernels
