// The order of a dense block's changes, class by class, for AVX2 and AVX3.  There is no compress of
// 16-bit lanes to sort them with: the positions are listed, and each goes to the end of its class,
// without a branch.
//
// Internal to kernels/, compiled once for each target of Highway.
#if defined(WEIGHTFS_SIMD_DENSE_ORDER256_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_ORDER256_INL
#undef WEIGHTFS_SIMD_DENSE_ORDER256_INL
#else
#define WEIGHTFS_SIMD_DENSE_ORDER256_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "kernels/block/scratch.hpp"
#include "kernels/scalar/xr.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/ones_of_byte.hpp"
#include "kernels/simd/simd.hpp"

#if WEIGHTFS_DENSE_TARGET && HWY_TARGET != HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

/// All bits of the first `left` of 8 lanes.
HWY_INLINE __m256i first_lanes(std::size_t left) {
  const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(std::min<std::size_t>(left, 8))),
                            lanes);
}

/// Stores the offset of each one bit of `word`, plus `base`.  Up to 8 entries after them may be
/// overwritten.
/// Returns: their end.
template <typename Offset>
HWY_INLINE Offset* store_ones_by_byte(std::uint64_t word, std::uint32_t base, Offset* to) {
#pragma GCC unroll 8
  for (std::uint32_t byte = 0; byte < 8; ++byte) {
    const std::uint64_t ones = word >> 8 * byte & 0xFF;
    const __m128i offsets =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kOnesOfByte[ones].data()));
    const auto first = static_cast<int>(base + 8 * byte);
    if constexpr (sizeof(Offset) == 2) {
      const __m128i all = _mm_set1_epi16(static_cast<short>(first));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                       _mm_add_epi16(_mm_cvtepu8_epi16(offsets), all));
    } else {
      const __m256i all = _mm256_set1_epi32(first);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                          _mm256_add_epi32(_mm256_cvtepu8_epi32(offsets), all));
    }
    to += std::popcount(ones);
  }
  return to;
}

/// Stores the offsets of the one bits of a bitmap.  Up to 8 entries after them may be overwritten.
/// Returns: how many.
HWY_INLINE std::size_t list_ones(const std::uint64_t* bitmap, std::size_t bits, std::uint16_t* to) {
  const std::uint16_t* const begin = to;
  for (std::size_t at = 0; at < bits; at += 64) {
    const std::uint64_t word = bitmap[at / 64];
    if (word != 0) to = store_ones_by_byte(word, static_cast<std::uint32_t>(at), to);
  }
  return static_cast<std::size_t>(to - begin);
}

/// Ones among the first bits of a bitmap.
HWY_INLINE std::uint32_t count_first(const std::uint64_t* bitmap, std::uint32_t bits) {
  int count = std::popcount(bitmap[bits / 64] & ((std::uint64_t{1} << bits % 64) - 1));
  for (std::uint32_t i = 0; i < bits / 64; ++i) count += std::popcount(bitmap[i]);
  return static_cast<std::uint32_t>(count);
}

/// How many changes there are of each class.
struct ClassOrder {
  ClassCounts changed{};
  ClassCounts in_half{};  // in the first half of the groups
};

/// The changes of one half of a block, which are taken from both ends: one class's next step waits
/// for its last one, so four ends are worked on in turn.
struct Half {
  const std::uint16_t *first, *last;  // positions
  ClassCounts next{}, end{};          // where those of each class go

  template <typename Place>
  HWY_INLINE void place_two(const std::uint8_t* classes, Place&& place) {
    const std::size_t front = *first++, back = *--last;
    place(front, next[classes[front]]++);
    place(back, --end[classes[back]]);
  }
};

/// Calls place(position, number) for each change that `changed` marks.  The numbers of a class
/// follow each other by position, and come behind those of the classes before it.
///
/// Requires: `order` counts these changes.
template <Kind kKind, typename Place>
HWY_INLINE void number_changes(ByteSpan old_block, unsigned ebase, const std::uint64_t* changed,
                               std::size_t groups, const ClassOrder& order, Scratch& scratch,
                               Place&& place) {
  auto* const classes = scratch.take<std::uint8_t>(kBlockElements);
  list_classes<kKind>(old_block, ebase, classes);
  auto* const positions = scratch.take<std::uint16_t>(kBlockElements + 8);
  const std::size_t count = list_ones(changed, groups * kGroup, positions);
  const auto* const middle =
      positions + std::accumulate(order.in_half.begin(), order.in_half.end(), std::size_t{0});
  Half a{positions, middle}, b{middle, positions + count};
  std::exclusive_scan(order.changed.begin(), order.changed.end(), a.next.begin(), 0U);
  std::inclusive_scan(order.changed.begin(), order.changed.end(), b.end.begin());
  for (unsigned c = 0; c < kClasses; ++c) a.end[c] = b.next[c] = a.next[c] + order.in_half[c];
  while (std::min(a.last - a.first, b.last - b.first) >= 2) {
    a.place_two(classes, place);
    b.place_two(classes, place);
  }
  for (Half* const half : {&a, &b}) {
    while (half->last - half->first >= 2) half->place_two(classes, place);
    if (half->first != half->last) place(*half->first, half->next[classes[*half->first]]);
  }
}

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEIGHTFS_DENSE_TARGET && HWY_TARGET != HWY_AVX3_DL

#endif  // per-target include guard
