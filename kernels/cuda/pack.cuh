// Coded blocks lie in slots of their own, and are packed back to back before they are copied down.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kernels.hpp"

namespace weightfs::kernels::cuda {

/// Copies the result of block blockIdx.x from its slot to the end of those before it.
///
/// Called by all threads of a thread block; one is launched for each result.
/// Returns: where its bytes begin.
__device__ inline std::uint8_t* pack_block(const CodedResult* results_dev,
                                           const std::uint8_t* slot_dev, std::uint8_t* packed_dev) {
  __shared__ unsigned long long begin;
  if (threadIdx.x == 0) begin = 0;
  __syncthreads();
  unsigned long long before = 0;
  for (unsigned b = threadIdx.x; b < blockIdx.x; b += blockDim.x) before += results_dev[b].size;
  atomicAdd(&begin, before);
  __syncthreads();

  const std::uint32_t size = results_dev[blockIdx.x].size;
  std::uint8_t* const packed = packed_dev + begin;
  for (std::uint32_t i = threadIdx.x; i < size; i += blockDim.x) packed[i] = slot_dev[i];
  return packed;
}

}  // namespace weightfs::kernels::cuda
