// Threads: the index of a CUDA thread within its thread block, and sums over a warp and over the
// block.
//
// All kernels run kThreads threads per block.  "Called by the whole warp / block" means by all its
// threads, under uniform control flow.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace weightfs::kernels::cuda {

inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kWarps = kThreads / 32;
inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFF;

__device__ inline std::uint32_t lane() { return threadIdx.x % 32; }
__device__ inline std::uint32_t warp() { return threadIdx.x / 32; }

__host__ __device__ constexpr std::uint32_t divide_up(std::uint32_t a, std::uint32_t b) {
  return (a + b - 1) / b;
}

/// A word whose `count` < 32 lowest bits are set.
__device__ inline std::uint32_t low_mask(std::uint32_t count) { return (1U << count) - 1; }
__device__ inline std::uint32_t count_ones(std::uint32_t word) {
  return static_cast<std::uint32_t>(__popc(word));
}

/// The sum of the values of lanes 0 .. lane().  Called by the whole warp.
__device__ inline std::uint32_t warp_inclusive_sum(std::uint32_t value) {
  for (std::uint32_t distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAllLanes, value, distance);
    if (lane() >= distance) value += below;
  }
  return value;
}

/// Working memory for sums over a block.
using WarpSums = std::uint32_t[kWarps];

/// The sum of the values of all threads.  Called by the whole block; has two barriers.
__device__ inline std::uint32_t block_sum(std::uint32_t value, WarpSums& warp_sums) {
  const std::uint32_t own = __reduce_add_sync(kAllLanes, value);
  if (lane() == 0) warp_sums[warp()] = own;
  __syncthreads();
  std::uint32_t sum = 0;
  for (std::uint32_t w = 0; w < kWarps; ++w) sum += warp_sums[w];
  __syncthreads();  // warp_sums can be reused
  return sum;
}

/// The sum of the values of threads 0 .. threadIdx.x - 1; `total` is set to the sum of all.  Called
/// by the whole block; has two barriers.
__device__ inline std::uint32_t block_exclusive_sum(std::uint32_t value, WarpSums& warp_sums,
                                                    std::uint32_t& total) {
  const std::uint32_t inclusive = warp_inclusive_sum(value);
  if (lane() == 31) warp_sums[warp()] = inclusive;
  __syncthreads();
  std::uint32_t before = inclusive - value;
  total = 0;
  for (std::uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp()) before += warp_sums[w];
    total += warp_sums[w];
  }
  __syncthreads();  // warp_sums can be reused
  return before;
}

/// before[i] = count_of(0) + ... + count_of(i - 1), for i < size.  Returns the total.
///
/// Called by the whole block; what count_of reads must be complete, and `before` is complete on
/// return.
template <typename T, typename CountOf>
__device__ std::uint32_t prefix_counts(T* before, std::uint32_t size, WarpSums& warp_sums,
                                       CountOf count_of) {
  std::uint32_t sum = 0;
  for (std::uint32_t tile = 0; tile < size; tile += kThreads) {
    const std::uint32_t i = tile + threadIdx.x;
    std::uint32_t tile_sum = 0;
    const std::uint32_t own = block_exclusive_sum(i < size ? count_of(i) : 0, warp_sums, tile_sum);
    if (i < size) before[i] = static_cast<T>(sum + own);
    sum += tile_sum;
  }
  __syncthreads();  // wait for the last tile
  return sum;
}

/// The largest i < size with before[i] <= rank, for an ascending `before` that starts with 0.
template <typename T>
__device__ std::uint32_t find_group(const T* before, std::uint32_t stride, std::uint32_t size,
                                    std::uint32_t rank) {
  std::uint32_t first = 0;
  while (size > 1) {
    const std::uint32_t half = size / 2;
    if (before[(first + half) * stride] <= rank) first += half;
    size -= half;
  }
  return first;
}

/// The position of the one bit that has `rank` ones below it.
///
/// Requires: it exists (otherwise the result is some number up to 31).
__device__ inline std::uint32_t select_bit(std::uint32_t word, std::uint32_t rank) {
  std::uint32_t position = 0;
  for (std::uint32_t half = 16; half > 0; half /= 2) {
    const std::uint32_t ones = count_ones(word & low_mask(half));
    if (rank < ones) continue;
    rank -= ones;
    word >>= half;
    position += half;
  }
  return position;
}

}  // namespace weightfs::kernels::cuda
