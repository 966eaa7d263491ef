// Compare: which elements of a block differ from the old ones.
//
// Both blocks are read once, eight elements per thread at a time, with several loads in flight
// ahead of their use; the result is one bit for each element.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/elements.cuh"
#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// An old block and the new one, aligned to kBlockAlignment.
template <typename Element>
struct BlockPair {
  using Bits = typename Element::Bits;
  const Bits* old_dev;
  const Bits* new_dev;
  std::uint32_t count;

  __device__ std::int32_t difference(std::uint32_t i) const {
    return Element::difference(old_dev[i], new_dev[i]);
  }
};

/// Calls visit(BlockPair) with the element type of this kind and returns its result.
template <typename Task, typename Visit>
__device__ auto with_block_pair(const Task& task, Visit visit) {
  return with_device_element(task.kind, [&](auto element) {
    using Element = decltype(element);
    using Bits = typename Element::Bits;
    return visit(BlockPair<Element>{reinterpret_cast<const Bits*>(task.old_dev),
                                    reinterpret_cast<const Bits*>(task.new_dev), task.elements});
  });
}

/// Eight elements in registers.
template <typename Bits>
struct EightElements {
  static constexpr std::uint32_t kWords = 2 * sizeof(Bits);
  static constexpr std::uint32_t kPerWord = 4 / sizeof(Bits);
  std::uint32_t words[kWords];

  /// Loads `count` <= 8 elements from `from`; the others are zero.
  __device__ static EightElements load_some(const Bits* from, std::uint32_t count) {
    EightElements eight{};
    for (std::uint32_t i = 0; i < 8; ++i) {  // avoids indices known only at run time
      if (i >= count) continue;
      eight.words[i / kPerWord] |= static_cast<std::uint32_t>(from[i])
                                   << (8 * sizeof(Bits) * (i % kPerWord));
    }
    return eight;
  }

  /// Loads eight elements from `from`.
  ///
  /// Requires: aligned to 8 elements, or to 16 bytes if that is less.
  __device__ static EightElements load(const Bits* from) {
    EightElements eight{};
    if constexpr (sizeof(Bits) == 1) {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      eight.words[0] = both.x;
      eight.words[1] = both.y;
    } else {
      for (std::uint32_t i = 0; i < kWords; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(from + i * kPerWord);
        eight.words[i] = four.x;
        eight.words[i + 1] = four.y;
        eight.words[i + 2] = four.z;
        eight.words[i + 3] = four.w;
      }
    }
    return eight;
  }

  [[nodiscard]] __device__ std::uint32_t get(std::uint32_t i) const {
    return static_cast<Bits>(words[i / kPerWord] >> (8 * sizeof(Bits) * (i % kPerWord)));
  }

  /// Bit i is set if elements i differ.
  [[nodiscard]] __device__ std::uint32_t differ(const EightElements& other) const {
    std::uint32_t bits = 0;
    for (std::uint32_t i = 0; i < kWords; ++i) {
      bits |= nonzero_elements(words[i] ^ other.words[i]) << (i * kPerWord);
    }
    return bits;
  }

 private:
  __device__ static std::uint32_t nonzero_elements(std::uint32_t x) {
    if constexpr (sizeof(Bits) == 4) {
      return x != 0 ? 1 : 0;
    } else if constexpr (sizeof(Bits) == 2) {
      return ((x & 0xFFFF) != 0 ? 1 : 0) | ((x >> 16) != 0 ? 2 : 0);
    } else {
      const std::uint32_t highest = (((x & 0x7F7F7F7F) + 0x7F7F7F7F) | x) >> 7 & 0x01010101;
      return highest * 0x10204080 >> 28;  // moves bits 0, 8, 16, 24 to 28 .. 31
    }
  }
};

/// The elements that a thread block compares at a time: each thread takes kAhead times eight.
inline constexpr std::uint32_t kAhead = 2;
inline constexpr std::uint32_t kCompareTile = kAhead * 8 * kThreads;

/// Compares a tile and writes its bits to `bytes`.  Called by the whole block.
template <bool kIsWhole, typename Element, typename Visit>
__device__ void compare_tile(const BlockPair<Element>& pair, std::uint32_t tile,
                             std::uint8_t* bytes, Visit visit) {
  using Eight = EightElements<typename Element::Bits>;
  Eight before[kAhead], after[kAhead];
  std::uint32_t there[kAhead];
  for (std::uint32_t k = 0; k < kAhead; ++k) {
    const std::uint32_t first = tile + 8 * (k * kThreads + threadIdx.x);
    if constexpr (kIsWhole) {
      there[k] = 8;
      before[k] = Eight::load(pair.old_dev + first);
      after[k] = Eight::load(pair.new_dev + first);
    } else {
      there[k] = first < pair.count ? min(pair.count - first, 8U) : 0;
      before[k] = Eight::load_some(pair.old_dev + first, there[k]);
      after[k] = Eight::load_some(pair.new_dev + first, there[k]);
    }
  }
  for (std::uint32_t k = 0; k < kAhead; ++k) {
    bytes[tile / 8 + k * kThreads + threadIdx.x] =
        static_cast<std::uint8_t>(before[k].differ(after[k]));
    visit(before[k], there[k]);
  }
}

/// Sets `changed` to the elements that differ and calls visit(eight old elements, how many of them
/// exist) along the way.  Returns how many differ.  Called by the whole block; complete on return.
template <typename Element, typename Visit>
__device__ std::uint32_t find_changed(const BlockPair<Element>& pair, RankedBits& changed,
                                      WarpSums& warp_sums, Visit visit) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(changed.words);
  std::uint32_t tile = 0;
  for (; tile + kCompareTile <= pair.count; tile += kCompareTile) {
    compare_tile<true>(pair, tile, bytes, visit);
  }
  for (; tile < kBlockElements; tile += kCompareTile) {
    compare_tile<false>(pair, tile, bytes, visit);
  }
  __syncthreads();
  return changed.count(warp_sums);
}

}  // namespace weightfs::kernels::cuda
