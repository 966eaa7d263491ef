// The differences of a dense block, sixteen at a time, for AVX3_DL: see dense_decode-inl.hpp.
//
// Internal to kernels/, compiled once for each target of Highway; included by decode.cpp only.
#if defined(WEIGHTFS_SIMD_DENSE_DECODE512_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_DECODE512_INL
#undef WEIGHTFS_SIMD_DENSE_DECODE512_INL
#else
#define WEIGHTFS_SIMD_DENSE_DECODE512_INL
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/block/ordered.hpp"
#include "kernels/scalar/xr.hpp"
#include "kernels/simd/class_index-inl.hpp"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

/// Sums of the lanes up to and including each.
HWY_INLINE __m512i running_sums(__m512i x) {
  const __m512i zero = _mm512_setzero_si512();
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 15));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 14));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 12));
  return _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 8));
}

HWY_INLINE __m512i last_lane(__m512i x) {
  return _mm512_permutexvar_epi32(_mm512_set1_epi32(15), x);
}

/// The first `left` of 16 lanes.
HWY_INLINE __mmask16 first_lanes(std::size_t left) {
  return static_cast<__mmask16>(left < 16 ? (1U << left) - 1 : 0xFFFF);
}

/// Fields that begin `offsets` bits behind bit `at` of a plane with slack.
/// Requires: no field is wider than kWidth - 1.
template <unsigned kWidth>
HWY_INLINE __m512i gather_fields(const std::byte* plane, std::uint64_t at, __m512i offsets,
                                 __m512i widths) {
  const std::byte* const base = plane + at / 8;
  const __m512i bits = _mm512_add_epi32(offsets, _mm512_set1_epi32(static_cast<int>(at % 8)));
  const __m512i bytes = _mm512_srli_epi32(bits, 3);
  const __m512i shifts = _mm512_and_si512(bits, _mm512_set1_epi32(7));
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, widths), one);
  if constexpr (kWidth <= 16) {
    const __m512i words = _mm512_i32gather_epi32(bytes, base, 1);
    return _mm512_and_si512(_mm512_srlv_epi32(words, shifts), mask);
  } else {
    const auto half = [&](__m256i at_bytes, __m256i by) HWY_ATTR {
      const __m512i words = _mm512_i32gather_epi64(at_bytes, base, 1);
      return _mm512_cvtepi64_epi32(_mm512_srlv_epi64(words, _mm512_cvtepu32_epi64(by)));
    };
    const __m256i low = half(_mm512_castsi512_si256(bytes), _mm512_castsi512_si256(shifts));
    const __m256i high =
        half(_mm512_extracti64x4_epi64(bytes, 1), _mm512_extracti64x4_epi64(shifts, 1));
    return _mm512_and_si512(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), mask);
  }
}

/// Exp-Golomb codes of one block, read in order.
template <typename Element>
class ValueReader {
 public:
  ValueReader(const XrParts& parts, const std::byte* rest) noexcept
      : rest_(rest), size_bits_(8 * std::uint64_t{parts.rest.size()}), at_(parts.values_at) {}

  /// Reads up to 16 codes of order `order` whose unary parts end at ones[0], ...
  ///
  /// Returns: what they code, plus one; `is_good` becomes false if there are no such differences.
  HWY_INLINE __m512i next(const std::uint32_t* ones, __mmask16 lanes, unsigned order,
                          bool& is_good) {
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i zeros = _mm512_sub_epi32(
        _mm512_sub_epi32(_mm512_loadu_si512(ones), _mm512_loadu_si512(ones - 1)), one);
    const __m512i bits =
        _mm512_maskz_add_epi32(lanes, zeros, _mm512_set1_epi32(static_cast<int>(order)));
    const __m512i width = _mm512_set1_epi32(static_cast<int>(Element::kWidth));
    is_good = is_good && _mm512_cmpge_epu32_mask(bits, width) == 0 && at_ <= size_bits_;
    if (HWY_UNLIKELY(!is_good)) return one;
    const __m512i ends = running_sums(bits);
    const __m512i fields =
        gather_fields<Element::kWidth>(rest_, at_, _mm512_sub_epi32(ends, bits), bits);
    at_ += static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(last_lane(ends))));
    const __m512i v = _mm512_or_si512(fields, _mm512_sllv_epi32(one, bits));
    return _mm512_sub_epi32(v, _mm512_set1_epi32(static_cast<int>((1U << order) - 1)));
  }

  [[nodiscard]] std::uint64_t offset() const noexcept { return at_; }

 private:
  const std::byte* rest_;
  std::uint64_t size_bits_, at_;
};

inline constexpr std::uint32_t kLanesOfStep = 16;

/// Stores differences of these sizes, down where S says so; those behind `lanes` are anything.
/// Returns: false if there are no such differences.
template <typename Element>
HWY_INLINE bool store_signed(const std::byte* signs, std::uint64_t at, __mmask16 lanes,
                             __m512i sizes, typename Element::Bits* to) {
  using Bits = typename Element::Bits;
  constexpr auto kHalf = std::uint32_t{1} << (Element::kWidth - 1);
  const auto down = static_cast<__mmask16>(load<std::uint32_t>(signs + at / 8) >> at % 8);
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i most = _mm512_mask_add_epi32(_mm512_set1_epi32(static_cast<int>(kHalf - 1)), down,
                                             _mm512_set1_epi32(static_cast<int>(kHalf - 1)), one);
  const __m512i each = _mm512_mask_sub_epi32(sizes, down, _mm512_setzero_si512(), sizes);
  if constexpr (sizeof(Bits) == 1) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(each));
  } else if constexpr (sizeof(Bits) == 2) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(each));
  } else {
    _mm512_storeu_si512(to, each);
  }
  return _mm512_mask_cmpgt_epu32_mask(lanes, sizes, most) == 0;
}

HWY_INLINE void store_sizes(std::uint32_t* to, __m512i sizes) { _mm512_store_si512(to, sizes); }

HWY_INLINE __m512i all_units() { return _mm512_set1_epi32(1); }

/// The changed members of a class in eight groups.
HWY_INLINE void deposit_eight(const ClassIndex& index, const MembersOfEight& members, unsigned cls,
                              const std::uint64_t* bitmap, std::size_t first,
                              std::uint64_t* changed) {
  alignas(64) std::uint64_t of_class[8];
  _mm512_store_si512(of_class, members(first));
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint32_t rank = index.before[cls][first + i];
    const std::uint64_t* const from = bitmap + rank / 64;
    const std::uint64_t bits = from[0] >> rank % 64 | from[1] << 1 << (63 - rank % 64);
    changed[i] = _pdep_u64(bits, of_class[i]);
  }
}

/// Stores the next differences to the places of a group that `changed` names.
/// Returns: the difference after them.
template <typename Bits>
HWY_INLINE const Bits* expand_group(const Bits* from, std::uint64_t changed, Bits* to) {
  constexpr unsigned kStep = 64 / sizeof(Bits);
#pragma GCC unroll 4
  for (unsigned i = 0; i < 64; i += kStep) {
    const __m512i next = _mm512_loadu_si512(from);
    if constexpr (sizeof(Bits) == 1) {
      _mm512_store_si512(to, _mm512_mask_expand_epi8(_mm512_load_si512(to), changed, next));
      from += std::popcount(changed);
    } else if constexpr (sizeof(Bits) == 2) {
      const auto lanes = static_cast<__mmask32>(changed >> i);
      const __m512i old = _mm512_load_si512(to + i);
      _mm512_store_si512(to + i, _mm512_mask_expand_epi16(old, lanes, next));
      from += std::popcount(lanes);
    } else {
      const auto lanes = static_cast<__mmask16>(changed >> i);
      const __m512i old = _mm512_load_si512(to + i);
      _mm512_store_si512(to + i, _mm512_mask_expand_epi32(old, lanes, next));
      from += std::popcount(static_cast<unsigned>(lanes));
    }
  }
  return from;
}

/// Puts the differences of one class into their places.
template <typename Bits>
HWY_NOINLINE void spread_differences(const ClassIndex& index, unsigned cls, std::size_t groups,
                                     const std::uint64_t* HWY_RESTRICT bitmap,
                                     const Bits* HWY_RESTRICT from, Bits* HWY_RESTRICT to) {
  const MembersOfEight members(index, cls);
  for (std::size_t first = 0; first < groups; first += 8) {
    alignas(64) std::uint64_t changed[8];
    deposit_eight(index, members, cls, bitmap, first, changed);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      from = expand_group(from, changed[i], to + (first + i) * kGroup);
    }
  }
}

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3_DL

#endif  // per-target include guard
