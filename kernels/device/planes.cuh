// Planes: the bit strings of a coded block, read by a thread block.
//
// Coded bytes may be at any address and may end at the end of an allocation: a read takes two
// aligned words if these are inside the plane, and single bytes otherwise.
//
// Format: docs/FORMAT.md, "Blocks".  Its twin on the host: kernels/block/bits.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block/block.hpp"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// The number of low bits to store for each of `listed` increasing numbers below `total` <= 2^30.
__device__ inline std::uint32_t rice(std::uint32_t total, std::uint32_t listed) {
  if (listed == 0) return 0;
  const std::uint32_t quotient = (2 * total - listed) / (2 * listed);
  return quotient == 0 ? 0 : 31 - static_cast<std::uint32_t>(__clz(static_cast<int>(quotient)));
}

__device__ inline std::uint32_t bytes_of(std::uint32_t bits) { return divide_up(bits, 8); }

/// A bit string in the coded block.  Past its end it reads as zeros.
///
/// Requires: at least three bytes of the coded block precede it, or it has fewer than eight bytes.
struct Plane {
  const std::uint8_t* bytes;
  std::uint32_t size;

  /// 32 bits from bit `at` on.
  __device__ std::uint32_t word_at(std::uint32_t at) const {
    const std::uint32_t first = at / 8;
    if (size >= 8 && first <= size - 8) {
      const auto address = reinterpret_cast<std::uintptr_t>(bytes + first);
      const auto* const words =
          reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3});
      const auto shift = static_cast<std::uint32_t>(address & 3) * 8 + at % 8;  // 0 .. 31
      return __funnelshift_r(words[0], words[1], shift);
    }
    return word_of_bytes_at(at);
  }
  /// The same with single bytes, for any address.
  __device__ std::uint32_t word_of_bytes_at(std::uint32_t at) const {
    const std::uint32_t first = at / 8;
    std::uint64_t word = 0;
    for (std::uint32_t k = 0; k < 5; ++k) {
      if (first + k < size) word |= std::uint64_t{bytes[first + k]} << (8 * k);
    }
    return static_cast<std::uint32_t>(word >> (at % 8));
  }
  __device__ std::uint32_t word(std::uint32_t index) const { return word_at(32 * index); }

  /// The field of `count` < 32 bits at bit `at`.
  __device__ std::uint32_t bits(std::uint32_t at, std::uint32_t count) const {
    return word_at(at) & low_mask(count);
  }

  /// Whether it has exactly the bytes that `used` bits need, and the bits after them are zero.
  __device__ bool ends_at(std::uint32_t used) const {
    return size == bytes_of(used) && is_padded(used);
  }
  /// Whether the bits from `used` to the end of its byte are zero.
  __device__ bool is_padded(std::uint32_t used) const {
    return used % 8 == 0 || bytes[used / 8] >> (used % 8) == 0;
  }
};

/// Cuts planes off the front of a block.
struct Cutter {
  const std::uint8_t* bytes;
  std::uint32_t left;
  bool too_short = false;

  __device__ Plane cut(std::uint32_t size) {
    if (size > left) {
      too_short = true;
      return {bytes, 0};
    }
    const Plane plane{bytes, size};
    bytes += size;
    left -= size;
    return plane;
  }
  __device__ Plane rest() { return cut(left); }
};

inline constexpr std::uint32_t kGroupWords = 16;
inline constexpr std::uint32_t kUnaryGroups = 65536 / (4 * kGroupWords);

/// Plane U with its index: every code by its number.
struct Unary {
  Plane plane;
  const std::uint32_t* ones_before;  // of each group of kGroupWords words
  std::uint32_t groups;

  /// The sum of the first `codes` codes: the number of zeros before the one bit that ends them.
  __device__ std::uint32_t sum(std::uint32_t codes) const {
    if (codes == 0) return 0;
    std::uint32_t rank = codes - 1;
    const std::uint32_t group = find_group(ones_before, 1, groups, rank);
    rank -= ones_before[group];
    std::uint32_t index = group * kGroupWords;
    std::uint32_t word = plane.word(index);
    for (std::uint32_t ones = count_ones(word); rank >= ones && 4 * index < plane.size;
         ones = count_ones(word)) {
      rank -= ones;
      word = plane.word(++index);
    }
    return 32 * index + select_bit(word, rank) - (codes - 1);
  }

  /// The code with this number, if the preceding codes sum to `begin`; 32 or more is 32.
  __device__ std::uint32_t code(std::uint32_t number, std::uint32_t begin) const {
    const std::uint32_t word = plane.word_at(begin + number);
    return word == 0 ? 32 : static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
  }
};

/// Indexes U, which is at most 65,535 bytes long.  Sets `good` to false unless it has exactly
/// `codes` codes and ends in the byte of the last one.  Called by the whole block.
__device__ inline Unary index_unary(const Plane& plane, std::uint32_t codes,
                                    std::uint32_t (&ones_before)[kUnaryGroups], WarpSums& warp_sums,
                                    bool& good) {
  const std::uint32_t groups = divide_up(plane.size, 4 * kGroupWords);
  const std::uint32_t ones =
      prefix_counts(ones_before, groups, warp_sums, [&](std::uint32_t group) {
        std::uint32_t count = 0;
        for (std::uint32_t k = 0; k < kGroupWords; ++k) {
          count += count_ones(plane.word(group * kGroupWords + k));
        }
        return count;
      });
  good = ones == codes && (plane.size == 0 || plane.bytes[plane.size - 1] != 0);
  return {plane, ones_before, groups};
}

/// One bit for each of up to 65,536 numbers, in shared memory, with the number of ones before each
/// word.
struct RankedBits {
  static constexpr std::uint32_t kWords = kBlockElements / 32;
  std::uint32_t words[kWords];
  std::uint16_t before[kWords];

  /// Called by the whole block; complete after the next barrier.
  __device__ void clear() {
    for (std::uint32_t i = threadIdx.x; i < kWords; i += kThreads) words[i] = 0;
  }
  __device__ void flip(std::uint32_t at) { atomicXor(&words[at / 32], 1U << (at % 32)); }

  /// Fills `before`; the words must be complete.  Called by the whole block.  Returns the number of
  /// ones.
  __device__ std::uint32_t count(WarpSums& warp_sums) {
    return prefix_counts(before, kWords, warp_sums,
                         [this](std::uint32_t i) { return count_ones(words[i]); });
  }

  // These require `before`.
  __device__ bool test(std::uint32_t at) const { return (words[at / 32] >> (at % 32) & 1) != 0; }
  __device__ std::uint32_t rank(std::uint32_t at) const {
    return before[at / 32] + count_ones(words[at / 32] & low_mask(at % 32));
  }
  __device__ std::uint32_t select(std::uint32_t rank) const {
    const std::uint32_t word = find_group(before, 1, kWords, rank);
    return 32 * word + select_bit(words[word], rank - before[word]);
  }
};

}  // namespace weightfs::kernels::cuda
