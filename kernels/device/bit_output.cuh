// BitOutput: a coded block as one bit string that all threads write in parallel.
//
// The bits start as zeros and are set with atomic operations, so fields may share words.  Short
// blocks are made in shared memory; longer ones at their destination, but starting at the next
// aligned address.  At the end the bytes are moved to their place.
//
//     begin_output | put ... | (barrier) end_output
//
// Format: docs/FORMAT.md, "Blocks".  Its twin on the host: BitWriter in kernels/block/bits.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// The largest block that is made in shared memory.
inline constexpr std::uint32_t kStagedBytes = 4096;
using Stage = std::uint32_t[kStagedBytes / 4];

struct BitOutput {
  std::uint32_t* words;

  /// Sets the field of `width` <= 32 bits at bit `at`.
  ///
  /// Requires: value < 2^width.
  __device__ void put(std::uint32_t at, std::uint32_t value, std::uint32_t width) const {
    if (value == 0) return;
    const std::uint32_t shift = at % 32;
    atomicOr(&words[at / 32], value << shift);
    if (shift + width > 32 && value >> (32 - shift) != 0) {
      atomicOr(&words[at / 32 + 1], value >> (32 - shift));
    }
  }

  /// Sets the one bit that ends a unary code of `zeros` zeros, which begins at bit `at`.
  __device__ void put_unary(std::uint32_t at, std::uint32_t zeros) const {
    atomicOr(&words[(at + zeros) / 32], 1U << (at + zeros) % 32);
  }
};

/// Where a block of `bytes` bytes for `to_dev` is made; filled with zeros.  Called by the whole
/// block; has a barrier.
///
/// Requires: there is room for bytes + 6 bytes at to_dev, or bytes <= kStagedBytes.
__device__ inline BitOutput begin_output(std::uint8_t* to_dev, std::uint32_t bytes, Stage& stage) {
  const std::uintptr_t aligned = (reinterpret_cast<std::uintptr_t>(to_dev) + 3) / 4 * 4;
  std::uint32_t* const words =
      bytes <= kStagedBytes ? &stage[0] : reinterpret_cast<std::uint32_t*>(aligned);
  for (std::uint32_t i = threadIdx.x; i < divide_up(bytes, 4); i += kThreads) words[i] = 0;
  __syncthreads();
  return {words};
}

/// Stores the low `count` <= 4 bytes of a word, at any address.
__device__ inline void store_bytes(std::uint8_t* to_dev, std::uint32_t word, std::uint32_t count) {
  if (count == 4 && reinterpret_cast<std::uintptr_t>(to_dev) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(to_dev) = word;
    return;
  }
  for (std::uint32_t k = 0; k < count; ++k) {
    to_dev[k] = static_cast<std::uint8_t>(word >> (8 * k));
  }
}

/// Moves the finished bytes to their place.  Called by the whole block after a barrier.
__device__ inline void end_output(const BitOutput& output, std::uint8_t* to_dev,
                                  std::uint32_t bytes) {
  if (reinterpret_cast<std::uint8_t*>(output.words) == to_dev) return;
  // A tile is read before it is written, since the two may overlap by a few bytes; the next tile is
  // beyond everything written so far.
  for (std::uint32_t tile = 0; tile < bytes; tile += 4 * kThreads) {
    const std::uint32_t at = tile + 4 * threadIdx.x;
    const std::uint32_t word = at < bytes ? output.words[at / 4] : 0;
    __syncthreads();
    if (at < bytes) store_bytes(to_dev + at, word, min(bytes - at, 4U));
  }
}

}  // namespace weightfs::kernels::cuda
