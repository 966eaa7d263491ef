// Hash: XXH3-64 of decoded bytes, the guard against accidents (not against attack: that is the
// SHA-256 of coded bytes below the manifest).
//
// Source: xxHash 0.8, XXH3_64bits with seed 0.  Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weightfs::kernels {

/// Hash of one chunk.
std::uint64_t hash_chunk(std::span<const std::byte> chunk) noexcept;

}  // namespace weightfs::kernels
