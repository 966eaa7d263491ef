// The parts of dense_encode-inl.hpp that differ from target to target, for AVX2 and AVX3.  There is
// no compress of 16-bit lanes, so the differences are sorted by class one at a time, without a
// branch; everything else takes eight values at a time.
//
// Internal to kernels/, compiled once for each target of Highway.
#if defined(WEIGHTFS_SIMD_DENSE_ENCODE256_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_ENCODE256_INL
#undef WEIGHTFS_SIMD_DENSE_ENCODE256_INL
#else
#define WEIGHTFS_SIMD_DENSE_ENCODE256_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>

#include "kernels/scalar/xr_values.hpp"
#include "kernels/simd/changes-inl.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/dense_order256-inl.hpp"
#include "kernels/simd/dense_parts-inl.hpp"
#include "kernels/simd/ones_of_byte.hpp"

#if WEIGHTFS_DENSE_TARGET && HWY_TARGET != HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

inline constexpr std::size_t kListStep = 16;
inline constexpr std::size_t kValuesStep = 8;

/// floor(log2(x)) of each lane, which is not 0.  (The target has no instruction for it: it is the
/// exponent of x / 2 as a number with a sign; without the bit after its first one, that is not
/// rounded up to the next power.)
HWY_INLINE __m256i log2_of(__m256i x) {
  const __m256i half = _mm256_srli_epi32(x, 1);
  const __m256i less = _mm256_andnot_si256(_mm256_srli_epi32(half, 1), half);
  const __m256i number = _mm256_castps_si256(_mm256_cvtepi32_ps(less));
  const __m256i log2 = _mm256_sub_epi32(_mm256_srli_epi32(number, 23), _mm256_set1_epi32(126));
  return _mm256_max_epi32(log2, _mm256_setzero_si256());
}

// ---- planes ----

/// Appends four strings of at most 64 bits each, merged where they fit.
HWY_INLINE void put_four(__m256i strings, __m256i widths, PlanePacker& plane) {
  const __m256i of_two = _mm256_add_epi64(widths, _mm256_unpackhi_epi64(widths, widths));
  const __m256i odd = _mm256_unpackhi_epi64(strings, strings);
  const __m256i twos = _mm256_or_si256(strings, _mm256_sllv_epi64(odd, widths));
  const auto low_width = static_cast<unsigned>(_mm256_extract_epi64(of_two, 0));
  const auto high_width = static_cast<unsigned>(_mm256_extract_epi64(of_two, 2));
  if (HWY_UNLIKELY(low_width > 64 || high_width > 64)) {
    alignas(32) std::uint64_t string[4], width[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(string), strings);
    _mm256_store_si256(reinterpret_cast<__m256i*>(width), widths);
    for (unsigned i = 0; i < 4; ++i) plane.put(string[i], static_cast<unsigned>(width[i]));
    return;
  }
  const auto low = static_cast<std::uint64_t>(_mm256_extract_epi64(twos, 0));
  const auto high = static_cast<std::uint64_t>(_mm256_extract_epi64(twos, 2));
  if (low_width + high_width < 64) {
    plane.put(low | high << low_width, low_width + high_width);
  } else {
    plane.put(low, low_width);
    plane.put(high, high_width);
  }
}

/// Sixteen unary codes.
HWY_INLINE void put_highs(__m256i highs, PlanePacker& plane) {
  const __m256i above = _mm256_subs_epu16(highs, _mm256_set1_epi16(15));
  if (HWY_UNLIKELY(!_mm256_testz_si256(above, above))) {
    alignas(32) std::uint16_t each[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(each), highs);
    for (const std::uint16_t zeros : each) plane.put_unary(zeros);
    return;
  }
  // Four codes a word: where each of them ends, and a one before every end.
  __m256i ends = _mm256_add_epi16(highs, _mm256_set1_epi16(1));
  ends = _mm256_add_epi16(ends, _mm256_slli_epi64(ends, 16));
  ends = _mm256_add_epi16(ends, _mm256_slli_epi64(ends, 32));
  const __m256i low16 = _mm256_set1_epi64x(0xFFFF);
  const __m256i last = _mm256_sub_epi16(ends, _mm256_set1_epi16(1));
  const auto bit_at = [](__m256i at)
                          HWY_ATTR { return _mm256_sllv_epi64(_mm256_set1_epi64x(1), at); };
  const __m256i first_two =
      _mm256_or_si256(bit_at(_mm256_and_si256(last, low16)),
                      bit_at(_mm256_and_si256(_mm256_srli_epi64(last, 16), low16)));
  const __m256i last_two =
      _mm256_or_si256(bit_at(_mm256_and_si256(_mm256_srli_epi64(last, 32), low16)),
                      bit_at(_mm256_srli_epi64(last, 48)));
  put_four(_mm256_or_si256(first_two, last_two), _mm256_srli_epi64(ends, 48), plane);
}

/// The low bits of sixteen gaps.
HWY_INLINE void put_lows(__m256i gaps, unsigned width, PlanePacker& plane) {
  constexpr std::uint64_t kEach = 0x0001'0001'0001'0001;
  const std::uint64_t mask = kEach * ((1U << width) - 1);
  alignas(32) std::uint64_t four[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(four), gaps);
  for (const std::uint64_t each : four) plane.put(_pext_u64(each, mask), 4 * width);
}

HWY_INLINE __m256i gaps_at(const std::uint16_t* numbers) {
  const auto at = [](const std::uint16_t* from) HWY_ATTR {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  };
  return _mm256_add_epi16(_mm256_sub_epi16(at(numbers), at(numbers - 1)), _mm256_set1_epi16(-1));
}

/// The codes of the first kListStep of these numbers: see DensePlanes::put_list().
HWY_INLINE void put_gaps(const std::uint16_t* numbers, unsigned low_bits, PlanePacker& unary,
                         PlanePacker& lows) {
  const __m256i gaps = gaps_at(numbers);
  put_highs(_mm256_srl_epi16(gaps, _mm_cvtsi32_si128(static_cast<int>(low_bits))), unary);
  put_lows(gaps, low_bits, lows);
}

/// Eight strings of at most 32 bits.
HWY_INLINE void put_pairs(__m256i strings, __m256i widths, PlanePacker& plane) {
  const __m256i low32 = _mm256_set1_epi64x(0xFFFF'FFFF);
  const __m256i low_width = _mm256_and_si256(widths, low32);
  const __m256i odd = _mm256_sllv_epi64(_mm256_srli_epi64(strings, 32), low_width);
  put_four(_mm256_or_si256(_mm256_and_si256(strings, low32), odd),
           _mm256_add_epi64(low_width, _mm256_srli_epi64(widths, 32)), plane);
}

/// Exp-Golomb codes of the first `left` values: see DensePlanes::put_values().
HWY_INLINE void put_value_codes(__m256i v, std::size_t left, unsigned order,
                                PlanePacker& unary_plane, PlanePacker& values_plane) {
  const __m256i lanes = first_lanes(left);
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i bits = _mm256_and_si256(lanes, log2_of(v));
  const __m256i fields = _mm256_xor_si256(v, _mm256_sllv_epi32(one, bits));
  put_pairs(_mm256_and_si256(lanes, fields), bits, values_plane);
  const __m256i zeros = _mm256_sub_epi32(bits, _mm256_set1_epi32(static_cast<int>(order)));
  const __m256i codes = _mm256_and_si256(lanes, _mm256_sllv_epi32(one, zeros));
  put_pairs(codes, _mm256_and_si256(lanes, _mm256_add_epi32(zeros, one)), unary_plane);
}

// ---- changes ----

/// Appends a bit for each member of a class in four groups.  Returns: how many of them change.
HWY_INLINE int put_changed(const std::uint64_t* of_class, const std::uint64_t* changed,
                           PlanePacker& ranks) {
  std::uint64_t bits[4];
  unsigned members[4];
  int count = 0;
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) {
    bits[i] = _pext_u64(changed[i], of_class[i]);
    members[i] = static_cast<unsigned>(std::popcount(of_class[i]));
    count += std::popcount(bits[i]);
  }
  const unsigned of_two = members[0] + members[1], of_all = of_two + members[2] + members[3];
  if (of_all < 64) {
    const std::uint64_t low = bits[0] | bits[1] << members[0];
    ranks.put(low | (bits[2] | bits[3] << members[2]) << of_two, of_all);
    return count;
  }
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) ranks.put(bits[i], members[i]);
  return count;
}

/// Makes the bitmap of the ranks of one class.  Returns: how many of its members change.
HWY_NOINLINE inline std::uint32_t mark_ranks_of(const ClassIndex& index, unsigned cls,
                                                std::size_t groups, const std::uint64_t* changed,
                                                std::uint64_t* bitmap) {
  const MembersOfFour members(index, cls);
  PlanePacker ranks(bitmap);
  int count = 0;
  for (std::size_t first = 0; first < groups; first += 4) {
    const __m256i all = members(first);
    if (_mm256_testz_si256(all, all)) continue;
    alignas(32) std::uint64_t of_class[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(of_class), all);
    count += put_changed(of_class, changed + first, ranks);
  }
  ranks.put(0, 64);
  return static_cast<std::uint32_t>(count);
}

HWY_INLINE __m256i load_sizes(const std::uint32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

/// Eight differences, as numbers with a sign.
template <typename Bits>
HWY_INLINE __m256i load_wide(const Bits* from) {
  if constexpr (sizeof(Bits) == 1) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (sizeof(Bits) == 2) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
}

/// |d| + more of kValuesStep differences.
template <typename Bits>
HWY_INLINE __m256i sizes_of(const Bits* differences, unsigned more) {
  return _mm256_add_epi32(_mm256_abs_epi32(load_wide(differences)),
                          _mm256_set1_epi32(static_cast<int>(more)));
}

template <typename Bits>
HWY_NOINLINE void find_exceptions(std::size_t count, DenseChanges<Bits>& changes) {
  const __m256i one = _mm256_set1_epi32(1);
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; i += 8) {
    const __m256i size = _mm256_abs_epi32(load_wide(changes.difference + i));
    const __m256i large =
        _mm256_andnot_si256(_mm256_cmpeq_epi32(size, one), first_lanes(count - i));
    const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(large)));
    const __m128i which =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kOnesOfByte[mask].data()));
    const __m128i numbers =
        _mm_add_epi16(_mm_cvtepu8_epi16(which), _mm_set1_epi16(static_cast<short>(i)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(changes.exceptions + found), numbers);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(changes.sizes + found),
        _mm256_permutevar8x32_epi32(_mm256_sub_epi32(size, one), _mm256_cvtepu8_epi32(which)));
    found += static_cast<std::size_t>(std::popcount(mask));
  }
  changes.exception_count = found;
}

/// Fills `changes`.
template <Kind kKind, typename Element>
HWY_NOINLINE void gather_changes(ByteSpan old_block, unsigned ebase, const ClassIndex& index,
                                 std::size_t groups, const MarkedChanges<Element>& marked,
                                 DenseChanges<typename Element::Bits>& changes, Scratch& scratch) {
  std::uint64_t* bitmap = changes.ranks;
  ClassOrder order;
  for (unsigned c = 0; c < kClasses; ++c) {
    changes.bitmap[c] = bitmap;
    order.changed[c] = mark_ranks_of(index, c, groups, marked.changed, bitmap);
    order.in_half[c] = count_first(bitmap, index.before[c][groups / 2]);
    bitmap += index.total[c] / 64 + 3;
  }
  changes.changed = order.changed;
  const auto* const HWY_RESTRICT from = marked.difference;
  auto* const HWY_RESTRICT to = changes.difference;
  number_changes<kKind>(old_block, ebase, marked.changed, groups, order, scratch,
                        [&](std::size_t position, std::uint32_t number)
                            HWY_ATTR { to[number] = from[position]; });
  find_exceptions(marked.count, changes);
}

// ---- parameters ----

/// Adds the sizes of one class's exceptions to its histograms.
HWY_NOINLINE inline void add_values(const std::uint32_t* sizes, std::size_t count,
                                    ClassValues& values) {
  constexpr unsigned kLengths = ClassValues::kLengths;
  constexpr unsigned kTables = 4;  // one counter must not wait for its last step
  alignas(64) std::uint16_t counts[kTables][kLengths * kLengths] = {};
  alignas(32) std::uint32_t keys[8];
  const __m256i most = _mm256_set1_epi32(31);
  const __m256i all = _mm256_set1_epi32(-1);
  __m256i all_sizes = _mm256_setzero_si256();
  for (std::size_t i = 0; i < count; i += 8) {
    const __m256i size = load_sizes(sizes + i);
    all_sizes = _mm256_or_si256(all_sizes, _mm256_and_si256(size, first_lanes(count - i)));
    const __m256i t = log2_of(size);
    // The ones that it begins with end before the first zero.
    const __m256i top = _mm256_sllv_epi32(size, _mm256_sub_epi32(most, t));
    const __m256i zero = log2_of(_mm256_andnot_si256(top, all));
    const __m256i u = _mm256_sub_epi32(_mm256_add_epi32(t, zero), _mm256_set1_epi32(30));
    _mm256_store_si256(reinterpret_cast<__m256i*>(keys),
                       _mm256_add_epi32(_mm256_slli_epi32(t, 5), u));
    if (HWY_LIKELY(count - i >= 8)) {
#pragma GCC unroll 8
      for (unsigned k = 0; k < 8; ++k) ++counts[k % kTables][keys[k]];
    } else {
      for (unsigned k = 0; k < count - i; ++k) ++counts[0][keys[k]];
    }
  }
  alignas(32) std::array<std::uint32_t, 8> merged;
  _mm256_store_si256(reinterpret_cast<__m256i*>(merged.data()), all_sizes);
  const std::uint32_t bits = std::accumulate(merged.begin(), merged.end(), 0U, std::bit_or<>());
  for (unsigned t = 0; t < static_cast<unsigned>(std::bit_width(bits)); ++t) {
    for (unsigned u = 0; u <= t; ++u) {
      const unsigned key = t * kLengths + u;
      const std::uint32_t sum = counts[0][key] + counts[1][key] + counts[2][key] + counts[3][key];
      if (sum > 0) values.add(t, u, sum);
    }
  }
}

/// For choose_z_of().
HWY_NOINLINE inline std::uint64_t sum_highs(std::span<const std::uint16_t> numbers,
                                            std::uint32_t next, unsigned low_bits) {
  std::uint64_t sum = (numbers[0] - next) >> low_bits;
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(low_bits));
  __m256i sums = _mm256_setzero_si256();
  std::size_t i = 1;
  for (; i + 16 <= numbers.size(); i += 16) {
    const __m256i highs = _mm256_srl_epi16(gaps_at(numbers.data() + i), shift);
    const __m256i even = _mm256_and_si256(highs, _mm256_set1_epi32(0xFFFF));
    sums = _mm256_add_epi32(sums, _mm256_add_epi32(even, _mm256_srli_epi32(highs, 16)));
  }
  alignas(32) std::uint32_t each[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(each), sums);
  sum += std::accumulate(each, each + 8, std::uint64_t{0});
  for (; i < numbers.size(); ++i) {
    sum += static_cast<std::uint32_t>(numbers[i] - numbers[i - 1] - 1) >> low_bits;
  }
  return sum;
}

// ---- signs ----

template <typename Bits>
HWY_NOINLINE std::byte* put_signs(const Bits* differences, std::size_t count, std::byte* to) {
  const hn::CappedTag<std::make_signed_t<Bits>, 32 / sizeof(Bits)> d;
  constexpr std::size_t kStep = hn::MaxLanes(d);
  const auto* const from = reinterpret_cast<const std::make_signed_t<Bits>*>(differences);
  const auto signs_at = [&](std::size_t at) HWY_ATTR {
    return bits_of(d, hn::Lt(hn::LoadU(d, from + at), hn::Zero(d)));
  };
  std::size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const std::uint64_t signs = signs_at(i);
    std::memcpy(to + i / 8, &signs, kStep / 8);
  }
  if (i < count) {
    const std::uint64_t signs = signs_at(i) & ((std::uint64_t{1} << (count - i)) - 1);
    std::memcpy(to + i / 8, &signs, plane_bytes(count - i));
  }
  return to + plane_bytes(count);
}

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEIGHTFS_DENSE_TARGET && HWY_TARGET != HWY_AVX3_DL

#endif  // per-target include guard
