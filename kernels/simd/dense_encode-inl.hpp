// Encoding of blocks in which many elements change, in passes that never look at a single change:
//
//     old, new   --> which elements change (a bit each), all differences, the class index
//     class by class:
//       members  --> a bitmap of ranks, by a bit extract from the bits of the changes; and the
//                    differences of the class: by a compress (AVX3_DL), or sorted one at a time
//     bitmaps    --> lists of gaps; where a gap has no low bits, the bitmap is its unary code
//     planes     --> in words that several codes were merged into, side by side in scratch memory
//
// The planes are written before it is known whether the block will be XR, because that takes less
// time than to count their bits.  Where it is not (XS, EF, or too long for XR), the caller encodes
// the block as any other.
//
// For targets with bit extract.  What differs between them is in dense_encode512-inl.hpp and
// dense_encode256-inl.hpp, under the same names.
//
// Internal to kernels/, compiled once for each target of Highway.
#if defined(WEIGHTFS_SIMD_DENSE_ENCODE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_ENCODE_INL
#undef WEIGHTFS_SIMD_DENSE_ENCODE_INL
#else
#define WEIGHTFS_SIMD_DENSE_ENCODE_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/block/bits.hpp"
#include "kernels/scalar/xr.hpp"
#include "kernels/scalar/xr_values.hpp"
#include "kernels/simd/changes-inl.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/dense_encode256-inl.hpp"
#include "kernels/simd/dense_encode512-inl.hpp"
#include "kernels/simd/dense_parts-inl.hpp"

#if WEIGHTFS_DENSE_TARGET
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

/// The planes but S, and the codes that go to them.
class DensePlanes {
 public:
  explicit DensePlanes(Scratch& scratch) noexcept
      : unary(scratch.take<std::uint64_t>(kWordsMax)),
        lows(scratch.take<std::uint64_t>(kBlockElements / 32 + kDenseSlack)),
        values(scratch.take<std::uint64_t>(kWordsMax)) {}

  /// Rice codes of ascending numbers, the first one's gap beginning at `next`.
  /// Requires: kDenseSlack readable entries behind the numbers, one before them.
  HWY_NOINLINE void put_list(std::uint16_t* numbers, std::size_t count, std::uint32_t next,
                             unsigned low_bits) {
    PlanePacker to_unary = unary, to_lows = lows;  // in registers
    const std::uint16_t before = numbers[-1];
    numbers[-1] = static_cast<std::uint16_t>(next - 1);
    std::size_t i = 0;
    for (; i + kListStep <= count; i += kListStep) {
      put_gaps(numbers + i, low_bits, to_unary, to_lows);
    }
    for (; i < count; ++i) {
      const std::uint32_t gap = static_cast<std::uint16_t>(numbers[i] - *(numbers + i - 1) - 1);
      to_unary.put_unary(gap >> low_bits);
      to_lows.put(gap & ((1U << low_bits) - 1), low_bits);
    }
    numbers[-1] = before;
    unary = to_unary;
    lows = to_lows;
  }

  /// Exp-Golomb codes of order `order`, of `v` = what is coded + 2^order.
  /// Requires: kDenseSlack readable entries behind.
  template <typename GetV>
  HWY_INLINE void put_values(std::size_t count, unsigned order, GetV&& get_v) {
    PlanePacker to_unary = unary, to_values = values;  // in registers
    for (std::size_t i = 0; i < count; i += kValuesStep) {
      put_value_codes(get_v(i), count - i, order, to_unary, to_values);
    }
    unary = to_unary;
    values = to_values;
  }

  PlanePacker unary, lows, values;

 private:
  static constexpr std::size_t kWordsMax = 2 * kBlockElements * 32 / 64 + kDenseSlack;
};

template <typename Element>
HWY_INLINE void mark_group(const std::byte* before, const std::byte* after, std::size_t group,
                           MarkedChanges<Element>& marked) {
  using Bits = typename Element::Bits;
  const hn::ScalableTag<Bits> d;
  std::uint64_t changed = 0;
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kGroupElements; i += hn::MaxLanes(d)) {
    const auto a = load_once(d, before + i * sizeof(Bits));
    const auto b = load_once(d, after + i * sizeof(Bits));
    changed |= bits_of(d, hn::Ne(a, b)) << i;
    hn::StoreU(hn::Sub(ordered<Element>(b), ordered<Element>(a)), d,
               marked.difference + group * kGroupElements + i);
  }
  marked.changed[group] = changed;
  marked.count += static_cast<std::size_t>(std::popcount(changed));
}

/// Marks the changes of a block, and those of all groups of its last span behind its end as none.
/// Calls on_span(span) for every span, as collect_changes() does.
template <typename Element, typename OnSpan>
HWY_INLINE void mark_changes(ByteSpan old_block, ByteSpan new_block, MarkedChanges<Element>& marked,
                             OnSpan&& on_span) {
  using Bits = typename Element::Bits;
  constexpr std::size_t kGroupBytes = kGroupElements * sizeof(Bits);
  constexpr std::size_t kSpanBytes = kSpanGroups * kGroupBytes;
  const std::size_t size = new_block.size();
  marked.count = 0;
  for (std::size_t span = 0; span * kSpanBytes < size; ++span) {
    std::size_t group = span * kSpanGroups;
    const std::size_t end = group + kSpanGroups;
    for (; group < end && (group + 1) * kGroupBytes <= size; ++group) {
      const std::byte* const before = old_block.data() + group * kGroupBytes;
      const std::byte* const after = new_block.data() + group * kGroupBytes;
      prefetch_group<Bits>(before, after);
      mark_group<Element>(before, after, group, marked);
    }
    if (const std::size_t at = group * kGroupBytes; group < end && at < size) {
      mark_group<Element>(PaddedGroup(old_block.data() + at, size - at).data(),
                          PaddedGroup(new_block.data() + at, size - at).data(), group, marked);
      ++group;
    }
    for (; group < end; ++group) marked.changed[group] = 0;
    on_span(span);
  }
}

// ---- parameters ----

template <typename Bits>
HWY_NOINLINE Values values_of(const DenseChanges<Bits>& changes) {
  Values values;
  values.exceptions = {changes.exceptions, changes.exception_count};
  std::uint32_t end = 0;
  std::size_t first = 0;
  for (unsigned c = 0; c < kClasses; ++c) {
    values.of_class[c].set_count(changes.changed[c]);
    end += changes.changed[c];
    const auto last =
        std::lower_bound(values.exceptions.begin() + static_cast<std::ptrdiff_t>(first),
                         values.exceptions.end(), end);
    const auto next = static_cast<std::size_t>(last - values.exceptions.begin());
    if (next > first) add_values(changes.sizes + first, next - first, values.of_class[c]);
    values.exceptions_end[c] = static_cast<std::uint32_t>(next);
    first = next;
  }
  return values;
}

// ---- lists ----

/// The list of a class: the ranks of its changed members, or of the others.
/// Note: turns the bitmap round where that is what is listed.
HWY_NOINLINE inline void put_ranks(std::uint64_t* bitmap, std::uint32_t total,
                                   std::uint32_t changed, std::uint16_t* numbers,
                                   DensePlanes& planes) {
  const bool is_inverted = 2 * changed > total;
  const std::uint32_t listed = is_inverted ? total - changed : changed;
  if (listed == 0) return;
  const std::size_t words = (total + 63) / 64;
  if (is_inverted) {
    for (std::size_t i = 0; i < words; ++i) bitmap[i] = ~bitmap[i];
    if (total % 64 != 0) bitmap[words - 1] &= (std::uint64_t{1} << total % 64) - 1;
  }
  const unsigned low_bits = rice(total, listed);
  if (low_bits > 0) {
    list_ones(bitmap, total, numbers);
    planes.put_list(numbers, listed, 0, low_bits);
    return;
  }
  std::size_t last = words - 1;
  while (bitmap[last] == 0) --last;
  PlanePacker unary = planes.unary;  // in registers
  for (std::size_t i = 0; i < last; ++i) unary.put(bitmap[i], 64);
  unary.put(bitmap[last], static_cast<unsigned>(std::bit_width(bitmap[last])));
  planes.unary = unary;
}

// ---- the block ----

/// Fewest bytes that the changes take as an EF block: all but what the gaps between exceptions
/// have above their low bits.
template <typename Bits>
std::uint64_t ef_bytes_min(const DenseChanges<Bits>& changes, std::size_t count,
                           std::size_t last_position, std::size_t elements, const Values& values) {
  const unsigned low_bits = rice(elements, count);
  const std::uint64_t exceptions = changes.exception_count;
  std::uint64_t bits = count * (2 + low_bits) + (last_position >> low_bits) +
                       exceptions * (1 + rice(count, exceptions));
  for (const ClassValues& of_class : values.of_class) bits += of_class.exception_bits();
  return bits / 8;
}

template <typename Element>
std::size_t last_position(const MarkedChanges<Element>& marked, std::size_t groups) {
  while (marked.changed[groups - 1] == 0) --groups;
  return groups * kGroup - 1 - static_cast<unsigned>(std::countl_zero(marked.changed[groups - 1]));
}

/// Writes all codes.  Returns: the header, but for the bytes of U.
template <typename Bits>
HWY_NOINLINE XrHeader put_codes(const ClassIndex& index, unsigned ebase, unsigned z,
                                DenseChanges<Bits>& changes, DensePlanes& planes,
                                std::size_t count) {
  XrHeader header{ebase, z, 0, {}};
  std::copy(changes.changed.begin(), changes.changed.end(), header.counts.begin());
  for (unsigned c = 0; c < kClasses; ++c) {
    put_ranks(changes.bitmap[c], index.total[c], changes.changed[c], changes.numbers, planes);
  }
  const std::uint32_t direct =
      std::accumulate(changes.changed.begin(), changes.changed.begin() + std::min(z, kClasses), 0U);
  std::uint16_t* const end = changes.exceptions + changes.exception_count;
  std::uint16_t* const first = std::lower_bound(changes.exceptions, end, direct);
  const auto exceptions = static_cast<std::size_t>(end - first);
  header.counts.back() = static_cast<std::uint32_t>(exceptions);
  planes.put_list(first, exceptions, direct, rice(count - direct, exceptions));
  std::size_t from = 0;
  for (unsigned c = 0; c < std::min(z, kClasses); ++c) {
    const unsigned order = direct_order(8 * sizeof(Bits), z, c);
    planes.put_values(changes.changed[c], order, [&](std::size_t i) HWY_ATTR {
      return sizes_of(changes.difference + from + i, (1U << order) - 1);
    });
    from += changes.changed[c];
  }
  const std::uint32_t* const sizes = changes.sizes + (first - changes.exceptions);
  planes.put_values(exceptions, 0, [&](std::size_t i) HWY_ATTR { return load_sizes(sizes + i); });
  return header;
}

/// Appends the block, if it is to be of mode xr, or raw instead of xr.
///
/// Returns: false if it may be of another mode; nothing was appended then.
template <Kind kKind>
HWY_NOINLINE bool encode_dense(const ClassIndex& index, unsigned ebase, ByteSpan old_block,
                               ByteSpan new_block, const MarkedChanges<ElementOf<kKind>>& marked,
                               Scratch& scratch, std::vector<std::byte>& coded) {
  using Bits = typename ElementOf<kKind>::Bits;
  const std::size_t elements = new_block.size() / sizeof(Bits);
  const std::size_t groups = (elements + 8 * kGroup - 1) / (8 * kGroup) * 8;
  DenseChanges<Bits> changes(scratch);
  gather_changes<kKind>(old_block, ebase, index, groups, marked, changes, scratch);
  Values values = values_of(changes);
  const std::uint64_t ef_bytes =
      ef_bytes_min(changes, marked.count, last_position(marked, groups), elements, values);
  const unsigned z = choose_z_of(kKind, values, sum_highs);
  DensePlanes planes(scratch);
  XrHeader header = put_codes(index, ebase, z, changes, planes, marked.count);
  header.unary_bytes = plane_bytes(planes.unary.bits());
  if (header.unary_bytes > kUnaryBytesMax) return false;
  if (header.unary_bytes <= kShortUnaryBytesMax && z <= kShortZMax) return false;

  const std::uint64_t bytes = long_header_bytes(header.counts) + header.unary_bytes +
                              plane_bytes(marked.count) + plane_bytes(planes.lows.bits()) +
                              plane_bytes(planes.values.bits());
  if (ef_bytes <= 16 * bytes / 15) return false;
  if (!saves_an_eighth(bytes, new_block)) {
    append_raw(new_block, coded);
    return true;
  }
  const std::size_t begin = coded.size();
  coded.resize(begin + bytes + kBitWriterSlack);
  BitWriter writer(coded.data() + begin);
  write_long_header(header, writer);
  std::byte* at = planes.unary.copy_to(coded.data() + begin + long_header_bytes(header.counts));
  at = put_signs(changes.difference, marked.count, at);
  at = planes.lows.copy_to(at);
  planes.values.copy_to(at);
  coded.resize(begin + bytes);
  return true;
}

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEIGHTFS_DENSE_TARGET

#endif  // per-target include guard
