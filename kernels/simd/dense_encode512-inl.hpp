// The parts of dense_encode-inl.hpp that differ from target to target, for AVX3_DL: a compress of
// 16-bit lanes for the differences of a class, and sixteen values at a time.
//
// Internal to kernels/, compiled once for each target of Highway.
#if defined(WEIGHTFS_SIMD_DENSE_ENCODE512_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_ENCODE512_INL
#undef WEIGHTFS_SIMD_DENSE_ENCODE512_INL
#else
#define WEIGHTFS_SIMD_DENSE_ENCODE512_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "kernels/scalar/xr_values.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/dense_parts-inl.hpp"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

/// floor(log2(x)) of each lane, which is not 0.  (The target has no instruction for it: it is the
/// exponent of x as a number rounded down.)
HWY_INLINE __m512i log2_of(__m512i x) {
  const __m512 rounded = _mm512_cvt_roundepu32_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  return _mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(rounded), 23),
                          _mm512_set1_epi32(127));
}

/// The first `left` of 16 lanes.
HWY_INLINE __mmask16 first_lanes(std::size_t left) {
  return static_cast<__mmask16>(left < 16 ? (1U << left) - 1 : 0xFFFF);
}

// ---- planes ----

template <unsigned kStep>
HWY_INLINE void put_each(__m512i strings, __m512i widths, PlanePacker& plane) {
  alignas(64) std::uint64_t bits[8], width[8];
  _mm512_store_si512(bits, strings);
  _mm512_store_si512(width, widths);
#pragma GCC unroll 8
  for (unsigned i = 0; i < 8; i += kStep) plane.put(bits[i], static_cast<unsigned>(width[i]));
}

/// Appends eight strings of at most 64 bits each, merged where all of them fit.
HWY_INLINE void put_eight(__m512i strings, __m512i widths, PlanePacker& plane) {
  const __m512i most = _mm512_set1_epi64(64);
  const __m512i odd = _mm512_unpackhi_epi64(strings, strings);
  const __m512i of_two = _mm512_add_epi64(widths, _mm512_unpackhi_epi64(widths, widths));
  if (HWY_UNLIKELY((_mm512_cmpgt_epu64_mask(of_two, most) & 0x55) != 0)) {
    put_each<1>(strings, widths, plane);
    return;
  }
  const __m512i twos = _mm512_or_si512(strings, _mm512_sllv_epi64(odd, widths));
  const __m512i of_four = _mm512_add_epi64(of_two, _mm512_permutex_epi64(of_two, 2));
  if ((_mm512_cmpgt_epu64_mask(of_four, most) & 0x11) != 0) {
    put_each<2>(twos, of_two, plane);
    return;
  }
  const __m512i second = _mm512_permutex_epi64(twos, 2);
  put_each<4>(_mm512_or_si512(twos, _mm512_sllv_epi64(second, of_two)), of_four, plane);
}

HWY_INLINE __m512i gaps_at(const std::uint16_t* numbers) {
  const __m512i each = _mm512_loadu_si512(numbers);
  const __m512i previous = _mm512_loadu_si512(numbers - 1);
  return _mm512_add_epi16(_mm512_sub_epi16(each, previous), _mm512_set1_epi16(-1));
}

/// 32 unary codes.
HWY_INLINE void put_highs(__m512i highs, PlanePacker& plane) {
  if (HWY_UNLIKELY(_mm512_cmpgt_epu16_mask(highs, _mm512_set1_epi16(15)) != 0)) {
    alignas(64) std::uint16_t each[32];
    _mm512_store_si512(each, highs);
    for (const std::uint16_t zeros : each) plane.put_unary(zeros);
    return;
  }
  // Four codes a word: where each of them ends, and a one before every end.
  __m512i ends = _mm512_add_epi16(highs, _mm512_set1_epi16(1));
  ends = _mm512_add_epi16(ends, _mm512_slli_epi64(ends, 16));
  ends = _mm512_add_epi16(ends, _mm512_slli_epi64(ends, 32));
  const __m512i one = _mm512_set1_epi64(1);
  const __m512i low16 = _mm512_set1_epi64(0xFFFF);
  const __m512i last = _mm512_sub_epi16(ends, _mm512_set1_epi16(1));
  const auto bit = [&](__m512i at) HWY_ATTR { return _mm512_sllv_epi64(one, at); };
  const __m512i words =
      _mm512_or_si512(_mm512_or_si512(bit(_mm512_and_si512(last, low16)),
                                      bit(_mm512_and_si512(_mm512_srli_epi64(last, 16), low16))),
                      _mm512_or_si512(bit(_mm512_and_si512(_mm512_srli_epi64(last, 32), low16)),
                                      bit(_mm512_srli_epi64(last, 48))));
  put_eight(words, _mm512_srli_epi64(ends, 48), plane);
}

/// The low bits of 32 gaps.
HWY_INLINE void put_lows(__m512i gaps, unsigned width, PlanePacker& plane) {
  const __m512i mask = _mm512_set1_epi16(static_cast<short>((1U << width) - 1));
  const __m512i fields = _mm512_and_si512(gaps, mask);
  const auto merge = [](__m512i even_mask, __m512i x, unsigned lane, unsigned by) HWY_ATTR {
    const __m512i even = _mm512_and_si512(x, even_mask);
    const __m512i odd = _mm512_srl_epi64(_mm512_andnot_si512(even_mask, x),
                                         _mm_cvtsi32_si128(static_cast<int>(lane - by)));
    return _mm512_or_si512(even, odd);
  };
  const __m512i pairs = merge(_mm512_set1_epi32(0xFFFF), fields, 16, width);
  const __m512i fours = merge(_mm512_set1_epi64(0xFFFF'FFFF), pairs, 32, 2 * width);
  put_eight(fours, _mm512_set1_epi64(4 * width), plane);
}

/// Sixteen strings of at most 32 bits.
HWY_INLINE void put_pairs(__m512i strings, __m512i widths, PlanePacker& plane) {
  const __m512i low32 = _mm512_set1_epi64(0xFFFF'FFFF);
  const __m512i low_width = _mm512_and_si512(widths, low32);
  const __m512i odd = _mm512_sllv_epi64(_mm512_srli_epi64(strings, 32), low_width);
  put_eight(_mm512_or_si512(_mm512_and_si512(strings, low32), odd),
            _mm512_add_epi64(low_width, _mm512_srli_epi64(widths, 32)), plane);
}

/// Exp-Golomb codes of the first `left` values: see DensePlanes::put_values().
HWY_INLINE void put_value_codes(__m512i v, std::size_t left, unsigned order,
                                PlanePacker& unary_plane, PlanePacker& values_plane) {
  const __mmask16 lanes = first_lanes(left);
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i bits = _mm512_maskz_mov_epi32(lanes, log2_of(v));
  const __m512i fields = _mm512_maskz_xor_epi32(lanes, v, _mm512_sllv_epi32(one, bits));
  put_pairs(fields, bits, values_plane);
  const __m512i zeros =
      _mm512_maskz_sub_epi32(lanes, bits, _mm512_set1_epi32(static_cast<int>(order)));
  const __m512i codes = _mm512_maskz_sllv_epi32(lanes, one, zeros);
  put_pairs(codes, _mm512_maskz_add_epi32(lanes, zeros, one), unary_plane);
}

/// The codes of the first kListStep of these numbers: see DensePlanes::put_list().
HWY_INLINE void put_gaps(const std::uint16_t* numbers, unsigned low_bits, PlanePacker& unary,
                         PlanePacker& lows) {
  const __m512i gaps = gaps_at(numbers);
  put_highs(_mm512_srl_epi16(gaps, _mm_cvtsi32_si128(static_cast<int>(low_bits))), unary);
  put_lows(gaps, low_bits, lows);
}
inline constexpr std::size_t kListStep = 32;
inline constexpr std::size_t kValuesStep = 16;

// ---- changes ----

/// Stores the offsets of the one bits of a bitmap.  Returns: how many.
HWY_INLINE std::size_t list_ones(const std::uint64_t* bitmap, std::size_t bits, std::uint16_t* to) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < bits; at += 64) {
    count += append_indices(bitmap[at / 64], at, to + count);
  }
  return count;
}

HWY_INLINE ClassCounts count_changed(const ClassIndex& index, const std::uint64_t* changed,
                                     std::size_t groups) {
  ClassCounts counts{};
  for (unsigned c = 0; c < kClasses; ++c) {
    const MembersOfEight members(index, c);
    __m512i sum = _mm512_setzero_si512();
    for (std::size_t group = 0; group < groups; group += 8) {
      const __m512i both = _mm512_and_si512(members(group), _mm512_load_si512(changed + group));
      sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(both));
    }
    counts[c] = static_cast<std::uint32_t>(_mm512_reduce_add_epi64(sum));
  }
  return counts;
}

/// Appends the differences of the group that `changed` names.  Returns: the end.
template <typename Bits>
HWY_INLINE Bits* compress_group(const Bits* from, std::uint64_t changed, Bits* to) {
  if constexpr (sizeof(Bits) == 1) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi8(changed, _mm512_loadu_si512(from)));
    return to + std::popcount(changed);
  } else {
    constexpr unsigned kStep = 64 / sizeof(Bits);
#pragma GCC unroll 4
    for (unsigned i = 0; i < 64; i += kStep) {
      const auto lanes =
          static_cast<std::conditional_t<kStep == 32, __mmask32, __mmask16>>(changed >> i);
      const __m512i all = _mm512_loadu_si512(from + i);
      if constexpr (sizeof(Bits) == 2) {
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi16(lanes, all));
      } else {
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(lanes, all));
      }
      to += std::popcount(lanes);
    }
    return to;
  }
}
/// A class with fewer changes is gone through change by change.
inline constexpr std::uint32_t kManyOfClass = 512;

template <typename Bits>
HWY_NOINLINE Bits* gather_many(const ClassIndex& index, unsigned cls, std::size_t groups,
                               const std::uint64_t* HWY_RESTRICT changed,
                               const Bits* HWY_RESTRICT difference, std::uint64_t* bitmap,
                               Bits* HWY_RESTRICT to) {
  const MembersOfEight members(index, cls);
  PlanePacker ranks(bitmap);
  for (std::size_t first = 0; first < groups; first += 8) {
    alignas(64) std::uint64_t of_class[8];
    _mm512_store_si512(of_class, members(first));
    for (std::size_t group = first; group < first + 8; ++group) {
      const std::uint64_t mask = of_class[group - first];
      ranks.put(_pext_u64(changed[group], mask), static_cast<unsigned>(std::popcount(mask)));
      to = compress_group(difference + group * kGroup, changed[group] & mask, to);
    }
  }
  ranks.put(0, 64);
  return to;
}

template <typename Bits>
HWY_NOINLINE Bits* gather_few(const ClassIndex& index, unsigned cls, std::size_t groups,
                              const std::uint64_t* HWY_RESTRICT changed,
                              const Bits* HWY_RESTRICT difference, std::uint64_t* bitmap,
                              Bits* HWY_RESTRICT to) {
  const MembersOfEight members(index, cls);
  std::memset(bitmap, 0, (index.total[cls] / 64 + 1) * 8);
  for (std::size_t first = 0; first < groups; first += 8) {
    const __m512i all = members(first);
    const __m512i both = _mm512_and_si512(all, _mm512_load_si512(changed + first));
    if (_mm512_test_epi64_mask(both, both) == 0) continue;
    alignas(64) std::uint64_t of_class[8], of_both[8];
    _mm512_store_si512(of_class, all);
    _mm512_store_si512(of_both, both);
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::uint64_t left = of_both[i]; left != 0; left &= left - 1) {
        const auto bit = static_cast<unsigned>(std::countr_zero(left));
        const std::uint64_t below = of_class[i] & ((std::uint64_t{1} << bit) - 1);
        const std::uint32_t rank =
            index.before[cls][first + i] + static_cast<std::uint32_t>(std::popcount(below));
        bitmap[rank / 64] |= std::uint64_t{1} << rank % 64;
        *to++ = difference[(first + i) * kGroup + bit];
      }
    }
  }
  return to;
}

/// Sixteen differences, as numbers with a sign.
template <typename Bits>
HWY_INLINE __m512i load_wide(const Bits* from) {
  if constexpr (sizeof(Bits) == 1) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (sizeof(Bits) == 2) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else {
    return _mm512_loadu_si512(from);
  }
}

template <typename Bits>
HWY_NOINLINE void find_exceptions(std::size_t count, DenseChanges<Bits>& changes) {
  const __m512i one = _mm512_set1_epi32(1);
  __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; i += 16) {
    const __m512i size = _mm512_abs_epi32(load_wide(changes.difference + i));
    const __mmask16 large = _mm512_mask_cmpneq_epi32_mask(first_lanes(count - i), size, one);
    const __m512i which = _mm512_maskz_compress_epi32(large, numbers);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(changes.exceptions + found),
                        _mm512_cvtepi32_epi16(which));
    _mm512_storeu_si512(changes.sizes + found,
                        _mm512_maskz_compress_epi32(large, _mm512_sub_epi32(size, one)));
    found += static_cast<std::size_t>(std::popcount(static_cast<unsigned>(large)));
    numbers = _mm512_add_epi32(numbers, _mm512_set1_epi32(16));
  }
  changes.exception_count = found;
}

HWY_INLINE __m512i load_sizes(const std::uint32_t* from) { return _mm512_loadu_si512(from); }

/// |d| + more of kValuesStep differences.
template <typename Bits>
HWY_INLINE __m512i sizes_of(const Bits* differences, unsigned more) {
  return _mm512_add_epi32(_mm512_abs_epi32(load_wide(differences)),
                          _mm512_set1_epi32(static_cast<int>(more)));
}

/// See the other one, which needs more for it: dense_encode256-inl.hpp.
template <Kind kKind, typename Element>
HWY_INLINE void gather_changes(ByteSpan, unsigned, const ClassIndex& index, std::size_t groups,
                               const MarkedChanges<Element>& marked,
                               DenseChanges<typename Element::Bits>& changes, Scratch&) {
  changes.changed = count_changed(index, marked.changed, groups);
  std::uint64_t* bitmap = changes.ranks;
  auto* to = changes.difference;
  for (unsigned c = 0; c < kClasses; ++c) {
    changes.bitmap[c] = bitmap;
    const auto gather = changes.changed[c] < kManyOfClass ? gather_few<typename Element::Bits>
                                                          : gather_many<typename Element::Bits>;
    to = gather(index, c, groups, marked.changed, marked.difference, bitmap, to);
    bitmap += index.total[c] / 64 + 3;
  }
  find_exceptions(marked.count, changes);
}

// ---- parameters ----

/// Adds the sizes of one class's exceptions to its histograms.
HWY_NOINLINE inline void add_values(const std::uint32_t* sizes, std::size_t count,
                                    ClassValues& values) {
  constexpr unsigned kLengths = ClassValues::kLengths;
  constexpr unsigned kTables = 4;  // one counter must not wait for its last step
  alignas(64) std::uint16_t counts[kTables][kLengths * kLengths] = {};
  alignas(64) std::uint32_t keys[16];
  __m512i largest = _mm512_setzero_si512();
  for (std::size_t i = 0; i < count; i += 16) {
    const __m512i size = _mm512_loadu_si512(sizes + i);
    const __m512i t = log2_of(size);
    largest = _mm512_mask_max_epi32(largest, first_lanes(count - i), largest, t);
    const __m512i most = _mm512_set1_epi32(31);
    const __m512i top = _mm512_sllv_epi32(size, _mm512_sub_epi32(most, t));
    // The ones that it begins with end before the first zero.
    const __m512i zero = log2_of(_mm512_andnot_si512(top, _mm512_set1_epi32(-1)));
    const __m512i u =
        _mm512_add_epi32(_mm512_sub_epi32(t, most), _mm512_add_epi32(zero, _mm512_set1_epi32(1)));
    _mm512_store_si512(keys, _mm512_add_epi32(_mm512_slli_epi32(t, 5), u));
    const std::size_t end = std::min<std::size_t>(16, count - i);
    if (end == 16) {
#pragma GCC unroll 16
      for (unsigned k = 0; k < 16; ++k) ++counts[k % kTables][keys[k]];
    } else {
      for (unsigned k = 0; k < end; ++k) ++counts[0][keys[k]];
    }
  }
  for (unsigned t = 0; t <= static_cast<unsigned>(_mm512_reduce_max_epi32(largest)); ++t) {
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
  __m512i sums = _mm512_setzero_si512();
  std::size_t i = 1;
  for (; i + 32 <= numbers.size(); i += 32) {
    const __m512i each = _mm512_loadu_si512(numbers.data() + i);
    const __m512i previous = _mm512_loadu_si512(numbers.data() + i - 1);
    const __m512i gaps = _mm512_add_epi16(_mm512_sub_epi16(each, previous), _mm512_set1_epi16(-1));
    const __m512i highs = _mm512_srl_epi16(gaps, shift);
    const __m512i even = _mm512_and_si512(highs, _mm512_set1_epi32(0xFFFF));
    sums = _mm512_add_epi32(sums, _mm512_add_epi32(even, _mm512_srli_epi32(highs, 16)));
  }
  sum += static_cast<std::uint32_t>(_mm512_reduce_add_epi32(sums));
  for (; i < numbers.size(); ++i) {
    sum += static_cast<std::uint32_t>(numbers[i] - numbers[i - 1] - 1) >> low_bits;
  }
  return sum;
}

// ---- signs ----

template <typename Bits>
HWY_NOINLINE std::byte* put_signs(const Bits* differences, std::size_t count, std::byte* to) {
  constexpr std::size_t kStep = 64 / sizeof(Bits);
  std::size_t i = 0;
  const auto signs_at = [&](std::size_t at) HWY_ATTR {
    const __m512i all = _mm512_loadu_si512(differences + at);
    if constexpr (sizeof(Bits) == 1) return static_cast<std::uint64_t>(_mm512_movepi8_mask(all));
    if constexpr (sizeof(Bits) == 2) return static_cast<std::uint64_t>(_mm512_movepi16_mask(all));
    return static_cast<std::uint64_t>(_mm512_movepi32_mask(all));
  };
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
#endif  // HWY_AVX3_DL

#endif  // per-target include guard
