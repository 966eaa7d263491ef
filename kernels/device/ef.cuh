// EF: decodes a block of mode EF, by a thread block.
//
// Each thread handles a change: the index of U gives the high part of its position, L the low part,
// and a bitmap says whether it is an exception.  All changes are checked before one is applied.  As
// many as fit are kept in shared memory in between; the others are decoded again.
//
// Format: docs/FORMAT.md, "EF".  Its twin on the host: kernels/scalar/ef.cpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/lists.cuh"
#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

struct EfShared {
  static constexpr std::uint32_t kKept = 4096;
  std::uint32_t ones_before[kUnaryGroups];
  RankedBits exceptions;  // among the changes
  std::uint32_t kept_difference[kKept];
  std::uint16_t kept_position[kKept];
  Lists<1> lists;
  WarpSums warp_sums;
};

/// The changes of a block, by number.
struct EfChanges {
  Unary unary;
  Plane rest;  // S, L, Q
  std::uint32_t lows_at, low_bits;
  Values values;
  const RankedBits& exceptions;

  /// Sets the position and difference of change i; returns false if it is invalid.
  __device__ bool get(std::uint32_t i, std::uint32_t elements, std::uint32_t width,
                      std::uint32_t& position, std::uint32_t& difference) const {
    const std::uint32_t high = unary.sum(i + 1);
    const std::uint32_t low = rest.bits(lows_at + i * low_bits, low_bits);
    const std::uint64_t at = (std::uint64_t{high} << low_bits) + low;
    // Equal high parts show as adjacent one bits; then the low parts must increase.
    const bool has_same_high = i > 0 && unary.plane.bits(high + i - 1, 1) != 0;
    const bool ascends = !has_same_high || low > rest.bits(lows_at + (i - 1) * low_bits, low_bits);
    const bool is_negative = rest.bits(i, 1) != 0;
    std::uint64_t size = 1;
    if (exceptions.test(i)) size = 2 + values.read(exceptions.rank(i), width, 0, 0);
    position = static_cast<std::uint32_t>(at);
    difference = negate_if(is_negative, static_cast<std::uint32_t>(size));
    return at < elements && ascends && is_possible(size, is_negative, width);
  }
};

/// Calls apply(position, difference) for every change if all are valid, and for none otherwise.
/// Called by the whole block.
template <typename Apply>
__device__ bool apply_ef_changes(const EfChanges& changes, std::uint32_t count,
                                 std::uint32_t elements, std::uint32_t width, EfShared& shared,
                                 Apply apply) {
  bool is_good = true;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    std::uint32_t position = 0, difference = 0;
    is_good &= changes.get(i, elements, width, position, difference);
    if (i >= EfShared::kKept) continue;
    shared.kept_position[i] = static_cast<std::uint16_t>(position);
    shared.kept_difference[i] = difference;
  }
  if (__syncthreads_and(is_good) == 0) return false;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    std::uint32_t position = 0, difference = 0;
    if (i < EfShared::kKept) {
      position = shared.kept_position[i];
      difference = shared.kept_difference[i];
    } else {
      changes.get(i, elements, width, position, difference);
    }
    apply(position, difference);
  }
  return true;
}

/// Decodes a block of mode EF for elements of `width` bits; for apply() see above.  Called by the
/// whole block; `shared` can be reused after the next barrier.
///
/// Requires: coded_size is at least 1 and at most that of a raw block.
template <typename Apply>
__device__ bool decode_ef(const std::uint8_t* coded, std::uint32_t coded_size,
                          std::uint32_t elements, std::uint32_t width, EfShared& shared,
                          Apply apply) {
  Cutter cutter{coded, coded_size};
  const Plane header = cutter.cut(7);
  const Plane unary_plane = cutter.cut(header.bits(8, 16));
  const Plane rest = cutter.rest();
  const std::uint32_t count = header.bits(24, 16) + 1;
  const std::uint32_t exceptions = header.bits(40, 16);
  if (cutter.too_short || count > elements || exceptions > count) return false;
  const std::uint32_t low_bits = rice(elements, count);
  const std::uint32_t gap_bits = rice(count, exceptions);
  const std::uint32_t lows_at = 8 * bytes_of(count);
  const std::uint32_t lows_end = lows_at + count * low_bits + exceptions * gap_bits;
  const std::uint32_t values_at = 8 * bytes_of(lows_end);
  if (values_at > 8 * rest.size || !rest.is_padded(count) || !rest.is_padded(lows_end)) {
    return false;
  }

  const std::uint32_t codes = count + 2 * exceptions;
  bool is_good = false;
  shared.exceptions.clear();
  if (threadIdx.x == 0) {
    shared.lists.of[0] = {count, exceptions, gap_bits, count, lows_at + count * low_bits, 0, 0};
  }
  const Unary unary =
      index_unary(unary_plane, codes, shared.ones_before, shared.warp_sums, is_good);
  if (!is_good) return false;
  is_good = visit_listed(
      shared.lists, unary, rest, shared.warp_sums,
      [&shared](std::uint32_t, std::uint32_t number) { shared.exceptions.flip(number); });
  const std::uint32_t gaps_end = count + exceptions;
  const Values values{unary, rest, gaps_end, unary.sum(gaps_end), values_at};
  is_good &= rest.ends_at(values_at + unary.sum(codes) - values.sum_before);
  if (__syncthreads_and(is_good) == 0) return false;
  shared.exceptions.count(shared.warp_sums);
  const EfChanges changes{unary, rest, lows_at, low_bits, values, shared.exceptions};
  return apply_ef_changes(changes, count, elements, width, shared, apply);
}

}  // namespace weightfs::kernels::cuda
