// Raw: plain elements in coded bytes, after a mode byte and hence at any alignment.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// Bytes 16 i .. 16 i + 15 after the mode byte; bytes past the end are zero.
__device__ inline uint4 raw_vector(const std::uint8_t* coded, std::uint32_t coded_size,
                                   std::uint32_t i) {
  const Plane plane{coded, coded_size};
  const std::uint32_t at = 8 * (1 + 16 * i);
  if (i == 0) {  // must not read before the coded bytes
    return make_uint4(plane.word_of_bytes_at(at), plane.word_of_bytes_at(at + 32),
                      plane.word_of_bytes_at(at + 64), plane.word_of_bytes_at(at + 96));
  }
  return make_uint4(plane.word_at(at), plane.word_at(at + 32), plane.word_at(at + 64),
                    plane.word_at(at + 96));
}

/// Copies the bytes after the mode byte to `block`, which is aligned to 16 bytes.  Called by the
/// whole block.
__device__ inline void copy_raw(const std::uint8_t* coded, std::uint32_t coded_size,
                                std::uint8_t* block) {
  const std::uint32_t size = coded_size - 1;
  for (std::uint32_t i = threadIdx.x; i < size / 16; i += kThreads) {
    reinterpret_cast<uint4*>(block)[i] = raw_vector(coded, coded_size, i);
  }
  for (std::uint32_t i = size / 16 * 16 + threadIdx.x; i < size; i += kThreads) {
    block[i] = coded[1 + i];
  }
}

}  // namespace weightfs::kernels::cuda
