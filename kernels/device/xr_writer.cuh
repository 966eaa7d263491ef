// XR writer: makes a block of mode XR or XS.
//
// The members of class 0, of class 1, ..., each class by position, form one sequence; a change is
// identified by the place of its element in it.  Two bit sets over this sequence, the changed
// members and those to be listed, determine the order of the lists: the number of a change is the
// number of bits before it.
//
// z is chosen without trial encoding: a direct change d of order s takes b bits in Q. If a = |d| -
// 1 has at most s bits, b = s; otherwise b is the number of bits of a minus one, plus one if all
// bits of a from s on are ones (a + 2^s then has one bit more).  So two histograms per class, of
// the lengths of a and of where its leading ones end, give the sizes for all orders.
//
// Format: docs/FORMAT.md, "XR" and "XS".  Its twin on the host: kernels/scalar/xr.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block/changes.hpp"
#include "kernels/device/bit_output.cuh"
#include "kernels/device/classes.cuh"
#include "kernels/device/ef_writer.cuh"
#include "kernels/device/ones.cuh"
#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels::cuda {

/// Counts for each class, and their prefix sums; entry kClasses is the end.
struct XrClasses {
  std::uint32_t first_member[kClasses + 1];
  std::uint32_t changed[kClasses], first_change[kClasses + 1];
  std::uint32_t exceptions[kClasses], first_exception[kClasses + 1];
  std::uint32_t exception_bits[kClasses];  // sum of b
  std::uint32_t is_inverted[kClasses];
  std::uint32_t first_listed[kClasses + 1];
  std::uint32_t low_bits[kClasses], first_low[kClasses + 1];  // k, and bits in L

  /// The class of a member of the sequence.
  [[nodiscard]] __device__ std::uint32_t class_of_member(std::uint32_t at) const {
    std::uint32_t cls = 0;
    for (std::uint32_t c = 1; c < kClasses; ++c) cls += first_member[c] <= at ? 1 : 0;
    return cls;
  }
  [[nodiscard]] __device__ std::uint32_t changes() const { return first_change[kClasses]; }
};

/// The encoder's choices, and the resulting sizes, in bits unless stated otherwise.
struct XrPlan {
  Mode mode;
  std::uint32_t ebase, z;
  std::uint32_t exceptions, gap_bits;             // ne, ke
  std::uint32_t gaps_at, direct_at, values_at;    // in U: where each part begins
  std::uint32_t exception_values_at, value_bits;  // in Q: where they begin; the size of Q
  std::uint32_t unary_bytes;
  std::uint32_t count_width;  // XR: cw; XS: s
  std::uint32_t counts_bits;  // of C
  std::uint32_t block_bytes;  // kCannotExpress if neither mode works
};

inline constexpr std::uint32_t kLengths = 32;

/// Shared memory of the writers.  The class index is the largest part, and is needed only while the
/// changes are sorted.
struct XrShared {
  /// Used after the class index.
  struct Lists {
    RankedBits listed;
    RankedBits exceptions;
    std::uint32_t direct_bits[kClasses][kLengths];  // sum of b by order, if the class is direct
    Stage stage;
  };

  RankedBits changed;  // over the sequence of members
  union {
    ClassIndex index;
    Lists lists;
  };
  std::uint32_t lengths[kClasses][kLengths];   // changes by the length of a = |d| - 1
  std::uint32_t ones_end[kClasses][kLengths];  // changes by the bits of a below its leading ones
  std::uint32_t gap_bits[kClasses];            // ke by z
  std::uint32_t gap_codes[kClasses];           // sum of gap >> ke by z
  XrClasses classes;
  XrPlan plan;
  WarpSums warp_sums;
};

class XrWriter {
 public:
  /// `differences_dev`: the difference of each changed member, by its place in the sequence.
  __device__ XrWriter(XrShared& shared, std::int32_t* differences_dev, std::uint32_t width)
      : shared_(shared), differences_dev_(differences_dev), width_(width) {}

  /// Sorts the changes of a block into the sequence.  Called by the whole block.
  ///
  /// Requires: shared.index is that of the old block.
  template <typename DifferenceAt>
  __device__ void sort(const RankedBits& changed, DifferenceAt difference_at) {
    if (threadIdx.x < 32) sum_members();
    shared_.changed.clear();
    for (std::uint32_t i = threadIdx.x; i < kClasses * kLengths; i += kThreads) {
      shared_.lengths[i / kLengths][i % kLengths] = 0;
      shared_.ones_end[i / kLengths][i % kLengths] = 0;
    }
    __syncthreads();
    visit_all(changed, [&](const Listed& change) {
      const std::uint32_t cls = shared_.index.class_at(change.at);
      const std::uint32_t at =
          shared_.classes.first_member[cls] + shared_.index.rank(cls, change.at);
      const std::int32_t difference = difference_at(change.at);
      shared_.changed.flip(at);
      differences_dev_[at] = difference;
      count_length(cls, magnitude(difference) - 1);
    });
    __syncthreads();
    shared_.changed.count(shared_.warp_sums);
  }

  /// Chooses z and the mode; the result is in shared.plan.  Called by the whole block.
  __device__ void plan(std::uint32_t ebase) {
    for (std::uint32_t cls = warp(); cls < kClasses; cls += kWarps) sum_lengths(cls);
    __syncthreads();
    if (threadIdx.x < 32) describe_classes();
    __syncthreads();
    mark_listed();
    choose_ones(shared_.changed, shared_.lists.exceptions, shared_.warp_sums,
                [this](std::uint32_t at) { return magnitude(differences_dev_[at]) > 1; });
    std::uint32_t rank_codes = 0;
    visit_all(shared_.lists.listed, [&](const Listed& one) { rank_codes += rank_gap(one).high; });
    rank_codes = block_sum(rank_codes, shared_.warp_sums);
    sum_gaps();
    if (threadIdx.x < 32) {
      const std::uint32_t z = choose_z();
      if (lane() == 0) describe(ebase, z, rank_codes + shared_.classes.first_listed[kClasses]);
      __syncwarp();
      choose_mode();
    }
    __syncthreads();
  }

  /// Writes the block.  Called by the whole block after begin_output(); complete after a barrier.
  __device__ void write(const BitOutput& output) {
    const XrPlan& plan = shared_.plan;
    if (threadIdx.x == 0) write_header(output);
    const std::uint32_t unary_at = header_bits() + 8 * bytes_of(plan.counts_bits);
    const Places places = places_behind(unary_at + 8 * plan.unary_bytes);
    write_ranks(output, unary_at, places);
    write_exceptions(output, unary_at, places);
    write_direct(output, unary_at, places);
  }

 private:
  static constexpr std::uint32_t kZTile = 6;  // sums in registers; twelve would be too many
  static_assert(kClasses % kZTile == 0);

  struct Gap {
    std::uint32_t gap, high;
  };
  /// Bit offsets in the block.
  struct Places {
    std::uint32_t signs, lows, values;
  };

  // Counting -----------------------------------------------------------------------------------

  /// Called by one warp.
  __device__ void sum_members() {
    const std::uint32_t own = lane() < kClasses ? shared_.index.total(lane()) : 0;
    const std::uint32_t inclusive = warp_inclusive_sum(own);
    if (lane() <= kClasses) shared_.classes.first_member[lane()] = inclusive - own;
  }

  __device__ void count_length(std::uint32_t cls, std::uint32_t a) {
    const std::uint32_t length = bit_length(a);
    const std::uint32_t leading =  // ones
        a == 0 ? 0 : static_cast<std::uint32_t>(__clz(static_cast<int>(~(a << (32 - length)))));
    atomicAdd(&shared_.lengths[cls][length], 1U);
    atomicAdd(&shared_.ones_end[cls][length - leading], 1U);
  }

  /// Called by one warp; lane s handles order s.
  __device__ void sum_lengths(std::uint32_t cls) {
    const std::uint32_t order = lane();
    const std::uint32_t own = shared_.lengths[cls][order];
    const std::uint32_t bits = order == 0 ? 0 : own * (order - 1);
    const std::uint32_t shorter = warp_inclusive_sum(own);  // or equal
    const std::uint32_t carried = warp_inclusive_sum(shared_.ones_end[cls][order]) - shorter;
    const std::uint32_t bits_inclusive = warp_inclusive_sum(bits);
    const std::uint32_t all_bits = __shfl_sync(kAllLanes, bits_inclusive, 31);
    shared_.lists.direct_bits[cls][order] = shorter * order + all_bits - bits_inclusive + carried;
    const std::uint32_t changed = __shfl_sync(kAllLanes, shorter, 31);
    if (lane() == 0) {
      shared_.classes.changed[cls] = changed;
      shared_.classes.exceptions[cls] = changed - own;
      shared_.classes.exception_bits[cls] = all_bits;
    }
  }

  /// Called by one warp; lane c handles class c, the next one the end.
  __device__ void describe_classes() {
    XrClasses& classes = shared_.classes;
    const bool is_class = lane() < kClasses;
    const std::uint32_t total =
        is_class ? classes.first_member[lane() + 1] - classes.first_member[lane()] : 0;
    const std::uint32_t changed = is_class ? classes.changed[lane()] : 0;
    const std::uint32_t exceptions = is_class ? classes.exceptions[lane()] : 0;
    const bool is_inverted = 2 * changed > total;
    const std::uint32_t listed = is_inverted ? total - changed : changed;
    const std::uint32_t low_bits = rice(total, listed);
    const std::uint32_t first_change = warp_inclusive_sum(changed) - changed;
    const std::uint32_t first_exception = warp_inclusive_sum(exceptions) - exceptions;
    const std::uint32_t first_listed = warp_inclusive_sum(listed) - listed;
    const std::uint32_t first_low = warp_inclusive_sum(listed * low_bits) - listed * low_bits;
    if (lane() > kClasses) return;
    classes.first_change[lane()] = first_change;
    classes.first_exception[lane()] = first_exception;
    classes.first_listed[lane()] = first_listed;
    classes.first_low[lane()] = first_low;
    if (!is_class) return;
    classes.is_inverted[lane()] = is_inverted ? 1 : 0;
    classes.low_bits[lane()] = low_bits;
  }

  /// Marks what is listed: the changed members, or the others if the class is inverted.  Called by
  /// the whole block.
  __device__ void mark_listed() {
    for (std::uint32_t i = threadIdx.x; i < RankedBits::kWords; i += kThreads) {
      std::uint32_t word = shared_.changed.words[i];
      for (std::uint32_t c = 0; c < kClasses; ++c) {
        if (shared_.classes.is_inverted[c] == 0) continue;
        const std::uint32_t begin = max(shared_.classes.first_member[c], 32 * i);
        const std::uint32_t end = min(shared_.classes.first_member[c + 1], 32 * i + 32);
        if (begin < end) word ^= (kAllLanes >> (32 - (end - begin))) << (begin - 32 * i);
      }
      shared_.lists.listed.words[i] = word;
    }
    __syncthreads();
    shared_.lists.listed.count(shared_.warp_sums);
  }

  // Gaps ---------------------------------------------------------------------------------------

  /// The gap between a listed rank and the previous one in its class.
  __device__ Gap rank_gap(const Listed& one) const {
    const std::uint32_t cls = shared_.classes.class_of_member(one.at);
    const std::uint32_t gap = one.at - max(one.previous_end, shared_.classes.first_member[cls]);
    return {gap, gap >> shared_.classes.low_bits[cls]};
  }

  /// Sums gap >> ke of the exceptions for every z that leaves unit changes.  Called by the whole
  /// block.
  __device__ void sum_gaps() {
    const XrClasses& classes = shared_.classes;
    if (threadIdx.x < kClasses) {
      const std::uint32_t z = threadIdx.x;
      shared_.gap_bits[z] = rice(classes.changes() - classes.first_change[z],
                                 classes.first_exception[kClasses] - classes.first_exception[z]);
      shared_.gap_codes[z] = 0;
    }
    __syncthreads();
    for (std::uint32_t first_z = 0; first_z < kClasses; first_z += kZTile) add_gaps(first_z);
    __syncthreads();
  }

  /// Adds the sums for z from first_z on.  Called by the whole block.
  __device__ void add_gaps(std::uint32_t first_z) {
    const XrClasses& classes = shared_.classes;
    std::uint32_t sums[kZTile] = {};
    visit_all(shared_.lists.exceptions, [&](const Listed& one) {
      const std::uint32_t number = shared_.changed.rank(one.at);
      const std::uint32_t previous_end = shared_.changed.rank(one.previous_end);
      for (std::uint32_t i = 0; i < kZTile; ++i) {
        const std::uint32_t z = first_z + i;
        const std::uint32_t begin = max(previous_end, classes.first_change[z]);
        const bool is_unit = one.at >= classes.first_member[z];
        sums[i] += is_unit ? (number - begin) >> shared_.gap_bits[z] : 0;
      }
    });
    for (std::uint32_t i = 0; i < kZTile; ++i) {
      const std::uint32_t sum = __reduce_add_sync(kAllLanes, sums[i]);
      if (lane() == 0 && sum != 0) atomicAdd(&shared_.gap_codes[first_z + i], sum);
    }
  }

  // Choosing -----------------------------------------------------------------------------------

  [[nodiscard]] __device__ std::uint32_t order_of(std::uint32_t z, std::uint32_t cls) const {
    return direct_order(width_, z, cls);
  }

  /// Bits of U that the direct changes of a class take.
  [[nodiscard]] __device__ std::uint32_t direct_unary(std::uint32_t z, std::uint32_t cls) const {
    const std::uint32_t order = order_of(z, cls);
    return shared_.lists.direct_bits[cls][order] + shared_.classes.changed[cls] -
           shared_.classes.changed[cls] * order;
  }

  /// Bits of U, L and Q that depend on z.
  [[nodiscard]] __device__ std::uint32_t bits_for(std::uint32_t z) const {
    const XrClasses& classes = shared_.classes;
    std::uint32_t bits = 0;
    for (std::uint32_t c = 0; c < kClasses; ++c) {
      bits += c < z ? direct_unary(z, c) + shared_.lists.direct_bits[c][order_of(z, c)]
                    : 2 * classes.exception_bits[c] + classes.exceptions[c];
    }
    if (z >= kClasses) return bits;
    const std::uint32_t exceptions = classes.first_exception[kClasses] - classes.first_exception[z];
    return bits + shared_.gap_codes[z] + exceptions * (1 + shared_.gap_bits[z]);
  }

  /// Called by one warp.
  __device__ std::uint32_t choose_z() const {
    static_assert(kZMax < 64);
    std::uint32_t best = kAllLanes;  // bits, then z: if equal, the smallest
    for (std::uint32_t z = lane(); z < kClasses + width_; z += 32) {
      best = min(best, bits_for(z) << 6 | z);
    }
    return __reduce_min_sync(kAllLanes, best) & 63;
  }

  /// Fills the parts of the plan that both modes share.
  __device__ void describe(std::uint32_t ebase, std::uint32_t z, std::uint32_t rank_bits) {
    const XrClasses& classes = shared_.classes;
    XrPlan& plan = shared_.plan;
    plan.ebase = ebase;
    plan.z = z;
    plan.exceptions = classes.first_exception[kClasses] - classes.first_exception[min(z, kClasses)];
    plan.gap_bits = z < kClasses ? shared_.gap_bits[z] : 0;
    plan.gaps_at = rank_bits;
    plan.direct_at = plan.gaps_at + plan.exceptions + (z < kClasses ? shared_.gap_codes[z] : 0);
    plan.values_at = plan.direct_at;
    plan.exception_values_at = 0;
    std::uint32_t exception_bits = 0;
    for (std::uint32_t c = 0; c < kClasses; ++c) {
      if (c < z) {
        plan.values_at += direct_unary(z, c);
        plan.exception_values_at += shared_.lists.direct_bits[c][order_of(z, c)];
      } else {
        exception_bits += classes.exception_bits[c];
      }
    }
    plan.unary_bytes = bytes_of(plan.values_at + plan.exceptions + exception_bits);
    plan.value_bits = plan.exception_values_at + exception_bits;
  }

  /// Takes XS if it is possible and shorter than XR.  Called by one warp.
  __device__ void choose_mode() {
    XrPlan& plan = shared_.plan;
    const std::uint32_t count = lane() < kClasses    ? shared_.classes.changed[lane()]
                                : lane() == kClasses ? plan.exceptions
                                                     : 0;
    const std::uint32_t width = bit_length(__reduce_max_sync(kAllLanes, count));
    std::uint32_t best = kAllLanes;  // bits, then order: if equal, the smallest
    for (std::uint32_t order = 0; order < 16; ++order) {
      const std::uint32_t bits = bit_length(count + (1U << order)) - 1;
      const std::uint32_t own = lane() <= kClasses ? 2 * bits - order + 1 : 0;
      best = min(best, __reduce_add_sync(kAllLanes, own) << 4 | order);
    }
    if (lane() != 0) return;
    const std::uint32_t changes = shared_.classes.changes();
    const std::uint32_t low_bits = lows();
    const std::uint32_t xr_bytes = 6 + bytes_of((kClasses + 1) * width) + plan.unary_bytes +
                                   bytes_of(changes) + bytes_of(low_bits) +
                                   bytes_of(plan.value_bits);
    const std::uint32_t xs_bytes =
        4 + bytes_of(best >> 4) + plan.unary_bytes + bytes_of(changes + low_bits + plan.value_bits);
    const bool is_short = plan.unary_bytes <= 0xFF && plan.z <= 15 && xs_bytes < xr_bytes;
    plan.mode = is_short ? Mode::xs : Mode::xr;
    plan.count_width = is_short ? best & 15 : width;
    plan.counts_bits = is_short ? best >> 4 : (kClasses + 1) * width;
    plan.block_bytes = is_short ? xs_bytes : plan.unary_bytes <= 0xFFFF ? xr_bytes : kCannotExpress;
  }

  // Writing ------------------------------------------------------------------------------------

  [[nodiscard]] __device__ std::uint32_t lows() const {
    return shared_.classes.first_low[kClasses] + shared_.plan.exceptions * shared_.plan.gap_bits;
  }
  [[nodiscard]] __device__ std::uint32_t header_bits() const {
    return shared_.plan.mode == Mode::xs ? 32 : 48;
  }

  [[nodiscard]] __device__ Places places_behind(std::uint32_t unary_end) const {
    const std::uint32_t changes = shared_.classes.changes();
    if (shared_.plan.mode == Mode::xs) {
      return {unary_end, unary_end + changes, unary_end + changes + lows()};
    }
    const std::uint32_t lows_at = unary_end + 8 * bytes_of(changes);
    return {unary_end, lows_at, lows_at + 8 * bytes_of(lows())};
  }

  /// Called by one thread.
  __device__ void write_header(const BitOutput& output) const {
    const XrPlan& plan = shared_.plan;
    const bool is_short = plan.mode == Mode::xs;
    output.put(0, static_cast<std::uint32_t>(plan.mode), 8);
    output.put(8, plan.ebase, 8);
    output.put(16, plan.unary_bytes, is_short ? 8 : 16);
    if (is_short) {
      output.put(24, plan.z | plan.count_width << 4, 8);
    } else {
      output.put(32, plan.z | plan.count_width << 8, 16);
    }
    std::uint32_t at = header_bits();
    for (std::uint32_t c = 0; c <= kClasses; ++c) {
      const std::uint32_t count = c < kClasses ? shared_.classes.changed[c] : plan.exceptions;
      if (!is_short) {
        output.put(at, count, plan.count_width);
        at += plan.count_width;
        continue;
      }
      const std::uint32_t v = count + (1U << plan.count_width);
      const std::uint32_t bits = bit_length(v) - 1;
      output.put_unary(at, bits - plan.count_width);
      at += bits - plan.count_width + 1;
      output.put(at, v & low_mask(bits), bits);
      at += bits;
    }
  }

  __device__ void write_ranks(const BitOutput& output, std::uint32_t unary_at,
                              const Places& places) {
    const XrClasses& classes = shared_.classes;
    visit_with_sums(
        shared_.lists.listed, shared_.warp_sums,
        [&](const Listed& one) { return rank_gap(one).high; },
        [&](const Listed& one, std::uint32_t high, std::uint32_t sum) {
          const std::uint32_t cls = classes.class_of_member(one.at);
          const std::uint32_t low_bits = classes.low_bits[cls];
          output.put_unary(unary_at + one.index + sum, high);
          output.put(places.lows + classes.first_low[cls] +
                         (one.index - classes.first_listed[cls]) * low_bits,
                     rank_gap(one).gap & low_mask(low_bits), low_bits);
        });
  }

  /// Writes gaps and values of the exceptions among the unit changes.
  __device__ void write_exceptions(const BitOutput& output, std::uint32_t unary_at,
                                   const Places& places) {
    const XrPlan& plan = shared_.plan;
    const std::uint32_t cls = min(plan.z, kClasses);
    const std::uint32_t first_unit = shared_.classes.first_member[cls];
    const std::uint32_t first_index = shared_.classes.first_exception[cls];
    const std::uint32_t lows_at = places.lows + shared_.classes.first_low[kClasses];
    const auto gap_of = [&](const Listed& one) {
      return shared_.changed.rank(one.at) - shared_.changed.rank(max(one.previous_end, first_unit));
    };
    visit_with_sums(
        shared_.lists.exceptions, shared_.warp_sums,
        [&](const Listed& one) { return one.at < first_unit ? 0 : gap_of(one) >> plan.gap_bits; },
        [&](const Listed& one, std::uint32_t high, std::uint32_t sum) {
          if (one.at < first_unit) return;
          const std::uint32_t index = one.index - first_index;
          output.put_unary(unary_at + plan.gaps_at + index + sum, high);
          output.put(lows_at + index * plan.gap_bits, gap_of(one) & low_mask(plan.gap_bits),
                     plan.gap_bits);
        });
    visit_with_sums(
        shared_.lists.exceptions, shared_.warp_sums,
        [&](const Listed& one) {
          return one.at < first_unit ? 0 : exception_bits(differences_dev_[one.at]);
        },
        [&](const Listed& one, std::uint32_t bits, std::uint32_t sum) {
          if (one.at < first_unit) return;
          const std::uint32_t v = magnitude(differences_dev_[one.at]) - 1;
          output.put_unary(unary_at + plan.values_at + one.index - first_index + sum, bits);
          output.put(places.values + plan.exception_values_at + sum, v & low_mask(bits), bits);
        });
  }

  /// Writes direct changes, and the signs of all changes.
  __device__ void write_direct(const BitOutput& output, std::uint32_t unary_at,
                               const Places& places) {
    const XrPlan& plan = shared_.plan;
    const XrClasses& classes = shared_.classes;
    visit_all(shared_.changed, [&](const Listed& one) {
      output.put(places.signs + one.index, differences_dev_[one.at] < 0 ? 1 : 0, 1);
    });
    const auto value_of = [&](const Listed& one, std::uint32_t order) {
      return magnitude(differences_dev_[one.at]) - 1 + (1U << order);
    };
    visit_with_sums(
        shared_.changed, shared_.warp_sums,
        [&](const Listed& one) -> std::uint32_t {
          const std::uint32_t cls = classes.class_of_member(one.at);
          return cls < plan.z ? bit_length(value_of(one, order_of(plan.z, cls))) - 1 : 0;
        },
        [&](const Listed& one, std::uint32_t bits, std::uint32_t sum) {
          const std::uint32_t cls = classes.class_of_member(one.at);
          if (cls >= plan.z) return;
          const std::uint32_t order = order_of(plan.z, cls);
          std::uint32_t orders = (one.index - classes.first_change[cls]) * order;  // before it
          for (std::uint32_t c = 0; c < cls; ++c)
            orders += classes.changed[c] * order_of(plan.z, c);
          output.put_unary(unary_at + plan.direct_at + one.index + sum - orders, bits - order);
          output.put(places.values + sum, value_of(one, order) & low_mask(bits), bits);
        });
  }

  XrShared& shared_;
  std::int32_t* differences_dev_;
  std::uint32_t width_;
};

}  // namespace weightfs::kernels::cuda
