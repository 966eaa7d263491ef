// Lists: increasing numbers coded as gaps (Rice codes), and sizes of changes (Exp-Golomb codes),
// read by a thread block in any order.
//
// A number is the sum of the gaps up to it: its high bits are the zeros of U up to its code, which
// the index of U gives at once; its low bits need a sum over L. The codes of all lists form one
// sequence, of which each warp takes a stretch: it sums the low bits of its stretch, and once it
// knows the sum of the stretches before it, it visits its stretch again.
//
// Format: docs/FORMAT.md, "Blocks".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block/changes.hpp"
#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// `listed` increasing numbers below `total`.
struct List {
  std::uint32_t total, listed, low_bits;
  std::uint32_t first_code;  // in U
  std::uint32_t first_low;   // bit offset in the rest of the block

  // Set by visit_listed():
  std::uint32_t high_before;  // sum of the codes before the first one
  std::uint32_t low_before;   // sum of the low bits before the first one's
};

/// Lists whose codes are consecutive.
template <std::uint32_t kCount>
struct Lists {
  List of[kCount];

  /// The list that a code belongs to.
  [[nodiscard]] __device__ std::uint32_t index_of(std::uint32_t code) const {
    std::uint32_t index = 0;
    for (std::uint32_t i = 1; i < kCount; ++i) index += of[i].first_code <= code;
    return index;
  }
};

/// A lane's view of a tile of 32 codes.
struct ListedCode {
  std::uint32_t list;         // index of the list
  std::uint32_t index;        // of the code, in its list
  std::uint32_t low;          // the code's low bits
  std::uint32_t lows_before;  // sum of the preceding low bits in the stretch
};

/// Calls visit(code, ListedCode) for codes begin .. end - 1, tile by tile.  Called by the whole
/// warp.  Returns the sum of all low bits.
template <std::uint32_t kCount, typename Visit>
__device__ std::uint32_t visit_lows(const Lists<kCount>& lists, const Plane& rest,
                                    std::uint32_t begin, std::uint32_t end, Visit visit) {
  std::uint32_t sum = 0;
  for (std::uint32_t tile = begin; tile < end; tile += 32) {
    const std::uint32_t code = tile + lane();
    ListedCode listed{};
    if (code < end) {
      listed.list = lists.index_of(code);
      const List& list = lists.of[listed.list];
      listed.index = code - list.first_code;
      listed.low = rest.bits(list.first_low + listed.index * list.low_bits, list.low_bits);
    }
    const std::uint32_t inclusive = warp_inclusive_sum(listed.low);
    listed.lows_before = sum + inclusive - listed.low;
    if (code < end) visit(code, listed);
    sum += __shfl_sync(kAllLanes, inclusive, 31);
  }
  return sum;
}

/// Calls visit(list, number) for every listed number, in any order.
///
/// Called by the whole block, after a barrier; its effects are complete after the next one.
/// Returns false to threads that met a number out of range, which is not visited.
template <std::uint32_t kCount, typename Visit>
__device__ bool visit_listed(Lists<kCount>& lists, const Unary& unary, const Plane& rest,
                             WarpSums& warp_sums, Visit visit) {
  const List& last = lists.of[kCount - 1];
  const std::uint32_t first_code = lists.of[0].first_code;
  const std::uint32_t end_code = last.first_code + last.listed;
  const std::uint32_t stretch = divide_up(divide_up(end_code - first_code, kWarps), 32) * 32;
  const std::uint32_t begin = min(first_code + warp() * stretch, end_code);
  const std::uint32_t end = min(begin + stretch, end_code);

  const std::uint32_t own = visit_lows(lists, rest, begin, end, [&](std::uint32_t, auto listed) {
    if (listed.index == 0) lists.of[listed.list].low_before = listed.lows_before;
  });
  if (lane() == 0) warp_sums[warp()] = own;
  __syncthreads();
  if (threadIdx.x < kCount && lists.of[threadIdx.x].listed > 0) {
    List& list = lists.of[threadIdx.x];
    list.high_before = unary.sum(list.first_code);
    for (std::uint32_t w = 0; w < (list.first_code - first_code) / stretch; ++w) {
      list.low_before += warp_sums[w];
    }
  }
  std::uint32_t lows_before = 0;
  for (std::uint32_t w = 0; w < warp(); ++w) lows_before += warp_sums[w];
  __syncthreads();

  bool in_range = true;
  visit_lows(lists, rest, begin, end, [&](std::uint32_t code, auto listed) {
    const List& list = lists.of[listed.list];
    const std::uint64_t high = unary.sum(code + 1) - list.high_before;
    const std::uint32_t low = lows_before + listed.lows_before + listed.low - list.low_before;
    const std::uint64_t number = (high << list.low_bits) + low + listed.index;
    if (number < list.total) {
      visit(listed.list, static_cast<std::uint32_t>(number));
    } else {
      in_range = false;
    }
  });
  return in_range;
}

/// The codes of direct changes, then of exceptions, by number.
struct Values {
  Unary unary;
  Plane rest;
  std::uint32_t first_code;  // in U
  std::uint32_t sum_before;  // of the codes before it
  std::uint32_t first_bit;   // of Q, in `rest`

  static constexpr std::uint64_t kTooLarge = std::uint64_t{1} << 40;

  /// The number with the Exp-Golomb code of this order < width, if the preceding orders sum to
  /// `orders_before`; kTooLarge if it has `width` bits or more.
  __device__ std::uint64_t read(std::uint32_t number, std::uint32_t width, std::uint32_t order,
                                std::uint32_t orders_before) const {
    const std::uint32_t code = first_code + number;
    const std::uint32_t begin = unary.sum(code);
    const std::uint32_t count = unary.code(code, begin) + order;
    if (count >= width) return kTooLarge;
    const std::uint32_t low = rest.bits(first_bit + begin - sum_before + orders_before, count);
    return (std::uint64_t{1} << count) + low - (std::uint64_t{1} << order);
  }
};

/// Whether a change can have this size in elements of `width` bits.
__device__ inline bool is_possible(std::uint64_t size, bool is_negative, std::uint32_t width) {
  return size + (is_negative ? 0 : 1) <= std::uint64_t{1} << (width - 1);
}

}  // namespace weightfs::kernels::cuda
