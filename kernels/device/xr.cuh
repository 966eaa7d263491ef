// XR and XS: decodes a block of mode XR or XS in place, by a thread block.
//
//   1. The old elements are indexed by class and rank (classes.cuh).  The index and the counts in
//      the header determine the lists, so the rest of the block can be cut.
//   2. Each member of each class has a slot: those of class 0 first, by rank, then those of class
//      1, and so on.  The lists become one bitmap over the slots: which of them changed.
//   3. The sizes of the changes are checked.
//   4. Each thread handles a change: the bitmap gives its slot, the index the element.
//
// Format: docs/FORMAT.md, "XR" and "XS".  Its twin on the host: kernels/scalar/xr.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/classes.cuh"
#include "kernels/device/lists.cuh"
#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels::cuda {

/// What the counts in the header determine for a class.
struct ClassInfo {
  bool is_inverted;
  std::uint32_t first_slot;
  std::uint32_t first_change;  // changes are numbered by slot
  std::uint32_t order;         // of the values of its changes, if direct
  std::uint32_t orders_before;
};

struct XrReadShared {
  ClassIndex index;
  std::uint32_t ones_before[kUnaryGroups];
  RankedBits changed;     // by slot
  RankedBits exceptions;  // among the unit changes
  ClassInfo classes[kClasses];
  Lists<kClasses + 1> lists;  // the last one lists the exceptions
  std::uint32_t count, lows_bits, orders_sum;
  std::uint32_t counts_bytes;  // of C
  WarpSums warp_sums;
};

/// The fields of a header except its counts.
struct XrHeader {
  bool is_short;  // XS
  std::uint32_t ebase, unary_bytes, z;
  std::uint32_t count_parameter;  // cw of XR, s of XS

  __device__ static XrHeader read(Cutter& cutter, bool is_short) {
    if (is_short) {
      const Plane fixed = cutter.cut(4);
      return {true, fixed.bits(8, 8), fixed.bits(16, 8), fixed.bits(24, 4), fixed.bits(28, 4)};
    }
    const Plane fixed = cutter.cut(6);
    return {false, fixed.bits(8, 8), fixed.bits(16, 16), fixed.bits(32, 8), fixed.bits(40, 8)};
  }
  [[nodiscard]] __device__ bool is_possible() const {
    return z <= kZMax && (is_short || (count_parameter >= 1 && count_parameter <= 17));
  }
};

/// Sets `count` to count number lane() of C, the last of which is that of the exceptions, and
/// `bits` to their size.  Returns false if one is malformed.  Called by the whole warp.
__device__ inline bool read_counts(const Plane& body, const XrHeader& header, std::uint32_t& count,
                                   std::uint32_t& bits) {
  constexpr std::uint32_t kCounts = kClasses + 1;
  constexpr std::uint32_t kShortBitsMax = 16;
  count = 0;
  if (!header.is_short) {
    const std::uint32_t width = header.count_parameter;
    if (lane() < kCounts) count = body.bits(lane() * width, width);
    bits = kCounts * width;
    return true;
  }
  // Sequential, by each lane: where a code begins is known only after the previous one.
  const std::uint32_t order = header.count_parameter;
  bits = 0;
  for (std::uint32_t i = 0; i < kCounts; ++i) {
    const std::uint32_t ahead = body.bits(bits, kShortBitsMax + 1);
    const std::uint32_t zeros =
        ahead == 0 ? kShortBitsMax + 1
                   : static_cast<std::uint32_t>(__ffs(static_cast<int>(ahead))) - 1;
    const std::uint32_t low_bits = zeros + order;
    if (low_bits > kShortBitsMax) return false;
    const std::uint32_t low = body.bits(bits + zeros + 1, low_bits);
    if (lane() == i) count = (1U << low_bits) + low - (1U << order);
    bits += zeros + 1 + low_bits;
  }
  return true;
}

/// Fills in everything in `shared` that follows from the header and the index.  Called by one warp;
/// lane c describes class c, lane kClasses the exceptions.  Returns false if the header is
/// malformed or contradicts the old elements.
__device__ inline bool describe_classes(const Plane& body, const XrHeader& header,
                                        std::uint32_t width, XrReadShared& shared) {
  std::uint32_t in_header = 0, counts_bits = 0;
  if (!read_counts(body, header, in_header, counts_bits)) return false;
  if (bytes_of(counts_bits) > body.size || !body.is_padded(counts_bits)) return false;

  const bool is_class = lane() < kClasses;
  const std::uint32_t total = is_class ? shared.index.total(lane()) : 0;
  const std::uint32_t changed = is_class ? in_header : 0;
  const bool is_direct = is_class && lane() < header.z;
  const std::uint32_t order = is_direct ? direct_order(width, header.z, lane()) : 0;
  const std::uint32_t unit = __reduce_add_sync(kAllLanes, is_direct ? 0 : changed);
  const std::uint32_t changes = __reduce_add_sync(kAllLanes, changed);
  const bool is_good = changes > 0 && (is_class ? changed <= total : in_header <= unit);
  if (__all_sync(kAllLanes, is_good || lane() > kClasses) == 0) return false;

  const bool is_inverted = 2 * changed > total;
  const std::uint32_t slots = warp_inclusive_sum(total);
  const std::uint32_t changes_inclusive = warp_inclusive_sum(changed);
  const std::uint32_t orders = warp_inclusive_sum(changed * order);
  if (is_class) {
    shared.classes[lane()] = {is_inverted, slots - total, changes_inclusive - changed, order,
                              orders - changed * order};
  }

  List list{total, is_inverted ? total - changed : changed, 0, 0, 0, 0, 0};
  if (!is_class) list = {unit, lane() == kClasses ? in_header : 0, 0, 0, 0, 0, 0};
  list.low_bits = rice(list.total, list.listed);
  const std::uint32_t codes = warp_inclusive_sum(list.listed);
  const std::uint32_t lows = warp_inclusive_sum(list.listed * list.low_bits);
  list.first_code = codes - list.listed;
  list.first_low = lows - list.listed * list.low_bits;  // relative to the end of S
  if (lane() <= kClasses) shared.lists.of[lane()] = list;
  if (lane() == 31) {
    shared.count = changes;
    shared.lows_bits = lows;
    shared.orders_sum = orders;
    shared.counts_bytes = bytes_of(counts_bits);
  }
  return true;
}

/// Marks all members of the inverted classes as changed.  Called by the whole block.
__device__ inline void start_inverted(XrReadShared& shared) {
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    if (!shared.classes[c].is_inverted) continue;
    const std::uint32_t begin = shared.classes[c].first_slot;
    const std::uint32_t end = begin + shared.lists.of[c].total;
    for (std::uint32_t word = begin / 32 + threadIdx.x; 32 * word < end; word += kThreads) {
      const std::uint32_t from = max(begin, 32 * word) % 32;
      const std::uint32_t to = min(end - 32 * word, 32U);
      const std::uint32_t mask = (to == 32 ? kAllLanes : low_mask(to)) & ~low_mask(from);
      atomicXor(&shared.changed.words[word], mask);
    }
  }
}

/// The changes of a block, by number.
struct XrChanges {
  const XrReadShared& shared;
  Plane rest;  // S, L, Q
  Values values;
  std::uint32_t direct_count;

  [[nodiscard]] __device__ bool is_negative(std::uint32_t i) const { return rest.bits(i, 1) != 0; }

  [[nodiscard]] __device__ const ClassInfo& class_of_change(std::uint32_t i,
                                                            std::uint32_t& cls) const {
    cls = 0;
    for (std::uint32_t c = 1; c < kClasses; ++c) cls += shared.classes[c].first_change <= i;
    return shared.classes[cls];
  }

  [[nodiscard]] __device__ std::uint64_t direct_size(std::uint32_t i, const ClassInfo& info,
                                                     std::uint32_t width) const {
    const std::uint32_t before = info.orders_before + (i - info.first_change) * info.order;
    return 1 + values.read(i, width, info.order, before);
  }
  /// The size of the exception with this number.
  [[nodiscard]] __device__ std::uint64_t exception_size(std::uint32_t e,
                                                        std::uint32_t width) const {
    return 2 + values.read(direct_count + e, width, 0, shared.orders_sum);
  }

  /// Whether value number i, of a direct change or of an exception, is possible.
  [[nodiscard]] __device__ bool has_possible_size(std::uint32_t i, std::uint32_t width) const {
    if (i < direct_count) {
      std::uint32_t cls = 0;
      const ClassInfo& info = class_of_change(i, cls);
      return is_possible(direct_size(i, info, width), is_negative(i), width);
    }
    const std::uint32_t e = i - direct_count;
    const std::uint64_t size = exception_size(e, width);
    if (is_possible(size, false, width)) return true;
    if (!is_possible(size, true, width)) return false;
    return is_negative(direct_count + shared.exceptions.select(e));
  }

  /// Position and difference of change i, which has been checked.
  __device__ void get(std::uint32_t i, std::uint32_t width, std::uint32_t& position,
                      std::uint32_t& difference) const {
    std::uint32_t cls = 0;
    const ClassInfo& info = class_of_change(i, cls);
    position = shared.index.select(cls, shared.changed.select(i) - info.first_slot);
    std::uint64_t size = 1;
    if (i < direct_count) {
      size = direct_size(i, info, width);
    } else if (shared.exceptions.test(i - direct_count)) {
      size = exception_size(shared.exceptions.rank(i - direct_count), width);
    }
    difference = negate_if(is_negative(i), static_cast<std::uint32_t>(size));
  }
};

/// The offsets of S, L and Q: planes in XR, one run of bits in XS.
struct XrOffsets {
  std::uint32_t signs_end, lows_at, lows_end, values_at;

  __device__ XrOffsets(bool is_short, std::uint32_t count, std::uint32_t lows_bits)
      : signs_end(count),
        lows_at(is_short ? signs_end : 8 * bytes_of(signs_end)),
        lows_end(lows_at + lows_bits),
        values_at(is_short ? lows_end : 8 * bytes_of(lows_end)) {}

  [[nodiscard]] __device__ bool fit(bool is_short, const Plane& rest) const {
    if (values_at > 8 * rest.size) return false;
    return is_short || (rest.is_padded(signs_end) && rest.is_padded(lows_end));
  }
};

/// Decodes a block of mode XR, or XS if `is_short`, in place.  A refused block is unchanged.
/// Called by the whole block.
///
/// Requires: coded_size is at least 1 and at most that of a raw block.
__device__ inline bool decode_xr(const std::uint8_t* coded, std::uint32_t coded_size, bool is_short,
                                 const BlockElements& elements, XrReadShared& shared) {
  const std::uint32_t width = elements.width();
  Cutter cutter{coded, coded_size};
  const XrHeader header = XrHeader::read(cutter, is_short);
  if (cutter.too_short || !header.is_possible()) return false;
  shared.changed.clear();
  shared.exceptions.clear();
  build_index(elements, header.ebase, shared.index);
  bool is_good =
      warp() != 0 || describe_classes({cutter.bytes, cutter.left}, header, width, shared);
  if (__syncthreads_and(is_good) == 0) return false;

  cutter.cut(shared.counts_bytes);
  const Plane unary_plane = cutter.cut(header.unary_bytes);
  const Plane rest = cutter.rest();
  const XrOffsets offsets(is_short, shared.count, shared.lows_bits);
  if (cutter.too_short || !offsets.fit(is_short, rest)) return false;
  const List& gaps = shared.lists.of[kClasses];  // the exceptions'
  const std::uint32_t exceptions = gaps.listed;
  const std::uint32_t direct_count = shared.count - gaps.total;
  const std::uint32_t lists_codes = gaps.first_code + exceptions;
  const std::uint32_t codes = lists_codes + direct_count + exceptions;
  const Unary unary =
      index_unary(unary_plane, codes, shared.ones_before, shared.warp_sums, is_good);
  if (!is_good) return false;

  if (threadIdx.x <= kClasses) shared.lists.of[threadIdx.x].first_low += offsets.lows_at;
  start_inverted(shared);
  __syncthreads();
  is_good = visit_listed(shared.lists, unary, rest, shared.warp_sums,
                         [&shared](std::uint32_t list, std::uint32_t number) {
                           if (list == kClasses) {
                             shared.exceptions.flip(number);
                           } else {
                             shared.changed.flip(shared.classes[list].first_slot + number);
                           }
                         });
  const Values values{unary, rest, lists_codes, unary.sum(lists_codes), offsets.values_at};
  is_good &=
      rest.ends_at(offsets.values_at + unary.sum(codes) - values.sum_before + shared.orders_sum);
  if (__syncthreads_and(is_good) == 0) return false;
  shared.changed.count(shared.warp_sums);
  shared.exceptions.count(shared.warp_sums);

  const XrChanges changes{shared, rest, values, direct_count};
  for (std::uint32_t i = threadIdx.x; i < direct_count + exceptions; i += kThreads) {
    is_good &= changes.has_possible_size(i, width);
  }
  if (__syncthreads_and(is_good) == 0) return false;
  for (std::uint32_t i = threadIdx.x; i < shared.count; i += kThreads) {
    std::uint32_t position = 0, difference = 0;
    changes.get(i, width, position, difference);
    elements.move(position, difference);
  }
  return true;
}

}  // namespace weightfs::kernels::cuda
