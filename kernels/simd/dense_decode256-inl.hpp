// The differences of a dense block, eight at a time, for AVX2 and AVX3: see dense_decode-inl.hpp.
//
// Internal to kernels/, compiled once for each target of Highway; included by decode.cpp only.
#if defined(WEIGHTFS_SIMD_DENSE_DECODE256_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_DECODE256_INL
#undef WEIGHTFS_SIMD_DENSE_DECODE256_INL
#else
#define WEIGHTFS_SIMD_DENSE_DECODE256_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/block/ordered.hpp"
#include "kernels/scalar/xr.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/dense_order256-inl.hpp"

#if WEIGHTFS_DENSE_TARGET && HWY_TARGET != HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

HWY_INLINE __m256i load_eight(const std::uint32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

/// Sums of the lanes up to and including each.
HWY_INLINE __m256i running_sums(__m256i x) {
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 4));
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 8));
  const __m256i low = _mm256_permutevar8x32_epi32(x, _mm256_set1_epi32(3));
  return _mm256_add_epi32(x, _mm256_blend_epi32(_mm256_setzero_si256(), low, 0xF0));
}

HWY_INLINE std::uint32_t last_lane(__m256i x) {
  return static_cast<std::uint32_t>(_mm256_extract_epi32(x, 7));
}

/// Fields that begin `offsets` bits behind bit `at` of a plane with slack.
/// Requires: no field is wider than kWidth - 1.
template <unsigned kWidth>
HWY_INLINE __m256i gather_fields(const std::byte* plane, std::uint64_t at, __m256i offsets,
                                 __m256i widths) {
  const std::byte* const base = plane + at / 8;
  const __m256i bits = _mm256_add_epi32(offsets, _mm256_set1_epi32(static_cast<int>(at % 8)));
  const __m256i bytes = _mm256_srli_epi32(bits, 3);
  const __m256i shifts = _mm256_and_si256(bits, _mm256_set1_epi32(7));
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, widths), one);
  if constexpr (kWidth <= 16) {
    const __m256i words = _mm256_i32gather_epi32(reinterpret_cast<const int*>(base), bytes, 1);
    return _mm256_and_si256(_mm256_srlv_epi32(words, shifts), mask);
  } else {
    const auto half = [&](__m128i at_bytes, __m128i by) HWY_ATTR {
      const __m256i words =
          _mm256_i32gather_epi64(reinterpret_cast<const long long*>(base), at_bytes, 1);
      return _mm256_srlv_epi64(words, _mm256_cvtepu32_epi64(by));
    };
    const __m256i low = half(_mm256_castsi256_si128(bytes), _mm256_castsi256_si128(shifts));
    const __m256i high =
        half(_mm256_extracti128_si256(bytes, 1), _mm256_extracti128_si256(shifts, 1));
    const __m256i halves = _mm256_castps_si256(_mm256_shuffle_ps(
        _mm256_castsi256_ps(low), _mm256_castsi256_ps(high), _MM_SHUFFLE(2, 0, 2, 0)));
    const __m256i words = _mm256_permute4x64_epi64(halves, _MM_SHUFFLE(3, 1, 2, 0));
    return _mm256_and_si256(words, mask);
  }
}

/// True if each of these lanes is at most that of `most`, as numbers without a sign.
HWY_INLINE bool are_at_most(__m256i lanes, __m256i x, __m256i most) {
  const __m256i good = _mm256_cmpeq_epi32(_mm256_min_epu32(x, most), x);
  return _mm256_testc_si256(good, lanes) != 0;
}

/// Exp-Golomb codes of one block, read in order.
template <typename Element>
class ValueReader {
 public:
  ValueReader(const XrParts& parts, const std::byte* rest) noexcept
      : rest_(rest), size_bits_(8 * std::uint64_t{parts.rest.size()}), at_(parts.values_at) {}

  /// Reads up to 8 codes of order `order` whose unary parts end at ones[0], ...
  ///
  /// Returns: what they code, plus one; `is_good` becomes false if there are no such differences.
  HWY_INLINE __m256i next(const std::uint32_t* ones, __m256i lanes, unsigned order, bool& is_good) {
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i zeros =
        _mm256_sub_epi32(_mm256_sub_epi32(load_eight(ones), load_eight(ones - 1)), one);
    const __m256i bits = _mm256_and_si256(
        lanes, _mm256_add_epi32(zeros, _mm256_set1_epi32(static_cast<int>(order))));
    const __m256i most = _mm256_set1_epi32(static_cast<int>(Element::kWidth) - 1);
    is_good = is_good && are_at_most(lanes, bits, most) && at_ <= size_bits_;
    if (HWY_UNLIKELY(!is_good)) return one;
    const __m256i ends = running_sums(bits);
    const __m256i fields =
        gather_fields<Element::kWidth>(rest_, at_, _mm256_sub_epi32(ends, bits), bits);
    at_ += last_lane(ends);
    const __m256i v = _mm256_or_si256(fields, _mm256_sllv_epi32(one, bits));
    return _mm256_sub_epi32(v, _mm256_set1_epi32(static_cast<int>((1U << order) - 1)));
  }

  [[nodiscard]] std::uint64_t offset() const noexcept { return at_; }

 private:
  const std::byte* rest_;
  std::uint64_t size_bits_, at_;
};

/// Stores the low bits of eight lanes.
template <typename Bits>
HWY_INLINE void store_narrow(__m256i x, Bits* to) {
  if constexpr (sizeof(Bits) == 4) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
    return;
  }
  const __m256i mask = _mm256_set1_epi32(sizeof(Bits) == 1 ? 0xFF : 0xFFFF);
  const __m256i low = _mm256_and_si256(x, mask);
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  if constexpr (sizeof(Bits) == 2) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
  } else {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }
}

/// All bits of the lanes whose bit is set in the low byte of `bits`.
HWY_INLINE __m256i lanes_of(std::uint32_t bits) {
  const __m256i each = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each),
                            each);
}

inline constexpr std::uint32_t kLanesOfStep = 8;

/// Differences of these sizes, down where a sign says so; those behind `lanes` are anything.
/// Returns: false if there are no such differences.
template <typename Element>
HWY_INLINE bool store_signed(const std::byte* signs, std::uint64_t at, __m256i lanes, __m256i sizes,
                             typename Element::Bits* to) {
  constexpr auto kHalf = std::uint32_t{1} << (Element::kWidth - 1);
  const __m256i down = lanes_of(load<std::uint32_t>(signs + at / 8) >> at % 8);
  const __m256i most = _mm256_sub_epi32(_mm256_set1_epi32(static_cast<int>(kHalf - 1)), down);
  store_narrow(_mm256_sub_epi32(_mm256_xor_si256(sizes, down), down), to);
  return are_at_most(lanes, sizes, most);
}

HWY_INLINE void store_sizes(std::uint32_t* to, __m256i sizes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sizes);
}

HWY_INLINE __m256i all_units() { return _mm256_set1_epi32(1); }

/// Adds the changed members of one class to those of all groups.
HWY_NOINLINE inline void deposit_ranks(const ClassIndex& index, unsigned cls, std::size_t groups,
                                       const std::uint64_t* HWY_RESTRICT bitmap,
                                       std::uint64_t* HWY_RESTRICT changed) {
  const MembersOfFour members(index, cls);
  for (std::size_t first = 0; first < groups; first += 4) {
    const __m256i all = members(first);
    if (_mm256_testz_si256(all, all)) continue;
    alignas(32) std::uint64_t of_class[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(of_class), all);
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t rank = index.before[cls][first + i];
      const std::uint64_t* const from = bitmap + rank / 64;
      const std::uint64_t bits = from[0] >> rank % 64 | from[1] << 1 << (63 - rank % 64);
      changed[first + i] |= _pdep_u64(bits, of_class[i]);
    }
  }
}

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEIGHTFS_DENSE_TARGET && HWY_TARGET != HWY_AVX3_DL

#endif  // per-target include guard
