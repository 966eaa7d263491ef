// EF writer: makes a block of mode EF from the changes of a block.
//
// Sizes are computed first, so that a mode can be chosen before anything is written: the total size
// of the position codes follows from the last one; only those of the exceptions have to be summed.
//
// Format: docs/FORMAT.md, "EF".  Its twin on the host: kernels/scalar/ef.cpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block/changes.hpp"
#include "kernels/device/bit_output.cuh"
#include "kernels/device/ones.cuh"
#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

inline constexpr std::uint32_t kCannotExpress = 0xFFFFFFFF;

/// The number of bits of x; 0 for 0.
__device__ inline std::uint32_t bit_length(std::uint32_t x) {
  return 32 - static_cast<std::uint32_t>(__clz(static_cast<int>(x)));
}

/// floor(log2 v) of the value coded for an exception with this difference, v = |d| - 1.
__device__ inline std::uint32_t exception_bits(std::int32_t difference) {
  return bit_length(magnitude(difference) - 1) - 1;
}

/// Sizes of an EF block.
struct EfPlan {
  std::uint32_t changed, exceptions;
  std::uint32_t low_bits, gap_bits;  // l, ke
  std::uint32_t gaps_at, values_at;  // in U: where the exceptions' codes begin
  std::uint32_t unary_bytes;         // ulen
  std::uint32_t block_bytes;         // kCannotExpress if a field is too narrow
};

/// The changes of a block: one bit for each changed element, and their differences.
template <typename DifferenceAt>
class EfWriter {
 public:
  /// Requires: `changed` has been counted.  `exceptions` is working memory.
  __device__ EfWriter(const RankedBits& changed, RankedBits& exceptions, WarpSums& warp_sums,
                      DifferenceAt difference_at)
      : changed_(changed),
        exceptions_(exceptions),
        warp_sums_(warp_sums),
        difference_at_(difference_at) {}

  /// Fills `exceptions` and computes the size of the block.  Called by the whole block.
  ///
  /// Requires: `count` > 0 changes among `elements` elements.
  __device__ EfPlan plan(std::uint32_t count, std::uint32_t elements) {
    EfPlan plan{};
    plan.changed = count;
    plan.exceptions = mark_exceptions();
    plan.low_bits = rice(elements, count);
    plan.gap_bits = rice(count, plan.exceptions);
    std::uint32_t gap_codes = 0;
    std::uint32_t value_bits = 0;
    visit_all(exceptions_, [&](const Listed& one) {
      gap_codes += gap(one) >> plan.gap_bits;
      value_bits += exception_bits(difference_at_(one.at));
    });
    gap_codes = block_sum(gap_codes, warp_sums_);
    value_bits = block_sum(value_bits, warp_sums_);
    plan.gaps_at = count + (changed_.select(count - 1) >> plan.low_bits);
    plan.values_at = plan.gaps_at + gap_codes + plan.exceptions;
    plan.unary_bytes = bytes_of(plan.values_at + value_bits + plan.exceptions);
    plan.block_bytes = kHeaderBytes + plan.unary_bytes + bytes_of(count) +
                       bytes_of(count * plan.low_bits + plan.exceptions * plan.gap_bits) +
                       bytes_of(value_bits);
    if (plan.unary_bytes > 0xFFFF || plan.exceptions > 0xFFFF) plan.block_bytes = kCannotExpress;
    return plan;
  }

  /// Sets `exceptions` to the changes of more than one unit.  Called by the whole block; complete
  /// on return.  Returns their number.
  __device__ std::uint32_t mark_exceptions() {
    return choose_ones(changed_, exceptions_, warp_sums_,
                       [this](std::uint32_t at) { return magnitude(difference_at_(at)) > 1; });
  }

  /// Writes the block.  Called by the whole block after begin_output(); complete after a barrier.
  ///
  /// Requires: `exceptions` is as plan() left it.
  __device__ void write(const EfPlan& plan, const BitOutput& output) {
    if (threadIdx.x == 0) {
      output.put(0, static_cast<std::uint32_t>(Mode::ef), 8);
      output.put(8, plan.unary_bytes, 16);
      output.put(24, plan.changed - 1, 16);
      output.put(40, plan.exceptions, 16);
    }
    const std::uint32_t unary_at = 8 * kHeaderBytes;
    const std::uint32_t signs_at = unary_at + 8 * plan.unary_bytes;
    const std::uint32_t lows_at = signs_at + 8 * bytes_of(plan.changed);
    const std::uint32_t gap_lows_at = lows_at + plan.changed * plan.low_bits;
    const std::uint32_t lows_bits = plan.changed * plan.low_bits + plan.exceptions * plan.gap_bits;
    const std::uint32_t values_at = lows_at + 8 * bytes_of(lows_bits);
    visit_all(changed_, [&](const Listed& one) {
      output.put_unary(unary_at + one.index, one.at >> plan.low_bits);
      output.put(lows_at + one.index * plan.low_bits, one.at & low_mask(plan.low_bits),
                 plan.low_bits);
      output.put(signs_at + one.index, difference_at_(one.at) < 0 ? 1 : 0, 1);
    });
    visit_with_sums(
        exceptions_, warp_sums_, [&](const Listed& one) { return gap(one) >> plan.gap_bits; },
        [&](const Listed& one, std::uint32_t high, std::uint32_t sum) {
          output.put_unary(unary_at + plan.gaps_at + one.index + sum, high);
          output.put(gap_lows_at + one.index * plan.gap_bits, gap(one) & low_mask(plan.gap_bits),
                     plan.gap_bits);
        });
    visit_with_sums(
        exceptions_, warp_sums_,
        [&](const Listed& one) { return exception_bits(difference_at_(one.at)); },
        [&](const Listed& one, std::uint32_t bits, std::uint32_t sum) {
          const std::uint32_t v = magnitude(difference_at_(one.at)) - 1;
          output.put_unary(unary_at + plan.values_at + one.index + sum, bits);
          output.put(values_at + sum, v & low_mask(bits), bits);
        });
  }

 private:
  static constexpr std::uint32_t kHeaderBytes = 7;

  /// The number of changes between this exception and the previous one.
  __device__ std::uint32_t gap(const Listed& one) const {
    return changed_.rank(one.at) - changed_.rank(one.previous_end);
  }

  const RankedBits& changed_;
  RankedBits& exceptions_;
  WarpSums& warp_sums_;
  DifferenceAt difference_at_;
};

}  // namespace weightfs::kernels::cuda
