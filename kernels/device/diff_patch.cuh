// DIFF: applies a patch with a difference for every element, by a thread block.
//
// Format: docs/FORMAT.md, "Patches".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/elements.cuh"
#include "kernels/device/raw.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// The elements in a word, each moved by the difference at the same place.
template <typename Element>
__device__ std::uint32_t moved_word(std::uint32_t elements, std::uint32_t differences) {
  using Bits = typename Element::Bits;
  std::uint32_t word = 0;
  for (std::uint32_t at = 0; at < 32; at += Element::kWidth) {
    const Bits moved = Element::moved(static_cast<Bits>(elements >> at), differences >> at);
    word |= static_cast<std::uint32_t>(moved) << at;
  }
  return word;
}

/// Moves the elements by the differences after the mode byte.  Called by the whole block.
///
/// Requires: coded_size is that of a patch of mode DIFF for this number of elements.
template <typename Element>
__device__ void move_all(const std::uint8_t* coded, std::uint32_t coded_size,
                         std::uint8_t* elements) {
  using Bits = typename Element::Bits;
  constexpr std::uint32_t kBytes = sizeof(Bits);
  const std::uint32_t vectors = (coded_size - 1) / 16;
  for (std::uint32_t i = threadIdx.x; i < vectors; i += kThreads) {
    uint4& block = reinterpret_cast<uint4*>(elements)[i];
    const uint4 differences = raw_vector(coded, coded_size, i);
    block = make_uint4(
        moved_word<Element>(block.x, differences.x), moved_word<Element>(block.y, differences.y),
        moved_word<Element>(block.z, differences.z), moved_word<Element>(block.w, differences.w));
  }
  const std::uint32_t count = (coded_size - 1) / kBytes;
  for (std::uint32_t i = vectors * (16 / kBytes) + threadIdx.x; i < count; i += kThreads) {
    std::uint32_t difference = 0;
    for (std::uint32_t k = 0; k < kBytes; ++k) {
      difference |= static_cast<std::uint32_t>(coded[1 + i * kBytes + k]) << (8 * k);
    }
    Bits& element = reinterpret_cast<Bits*>(elements)[i];
    element = Element::moved(element, difference);
  }
}

}  // namespace weightfs::kernels::cuda
