// Changes, vectorised: which elements of a block differ, 64 at a time, for one Highway target.
//
// A group is 64 elements: one bit for each fits into a word.  The end of a block that does not fill
// a group is copied into one, padded with equal elements.
//
// Included by the files of kernels/simd, once for each target.  Internal to kernels/.
#if defined(WEIGHTFS_KERNELS_SIMD_CHANGES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_KERNELS_SIMD_CHANGES_INL_HPP
#undef WEIGHTFS_KERNELS_SIMD_CHANGES_INL_HPP
#else
#define WEIGHTFS_KERNELS_SIMD_CHANGES_INL_HPP
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/block/changes.hpp"
#include "kernels/block/ordered.hpp"

HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kGroupElements = 64;
inline constexpr std::size_t kSpanGroups = 32;

/// The vector at `from`, which need not be aligned.
template <typename D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::byte* from) {
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(from));
}

/// One bit for each lane.
template <typename D>
HWY_INLINE std::uint64_t bits_of(D d, hn::Mask<D> mask) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  using Word = std::conditional_t<
      kLanes <= 8, std::uint8_t,
      std::conditional_t<kLanes == 16, std::uint16_t,
                         std::conditional_t<kLanes == 32, std::uint32_t, std::uint64_t>>>;
  std::uint8_t bytes[sizeof(Word)];
  hn::StoreMaskBits(d, mask, bytes);
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

/// ordered(x) for all element types.
template <typename Element, typename V>
HWY_INLINE V ordered(V x) {
  if constexpr (std::is_same_v<Element, weightfs::kernels::Element<std::uint8_t, false>>) {
    return x;
  } else {
    const hn::DFromV<V> d;
    const hn::RebindToSigned<decltype(d)> i;
    const V all_if_negative = hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(i, x)));
    return hn::Xor(x, hn::Or(all_if_negative, hn::Set(d, Element::kSign)));
  }
}

/// Inverse of ordered().
template <typename Element, typename V>
HWY_INLINE V unordered(V x) {
  if constexpr (std::is_same_v<Element, weightfs::kernels::Element<std::uint8_t, false>>) {
    return x;
  } else {
    const hn::DFromV<V> d;
    const hn::RebindToSigned<decltype(d)> i;
    const V all_if_positive = hn::BitCast(d, hn::BroadcastSignBit(hn::Not(hn::BitCast(i, x))));
    return hn::Xor(x, hn::Or(all_if_positive, hn::Set(d, Element::kSign)));
  }
}

/// Writes `first` + the index of each one bit, in ascending order, to `to`.  Stores several at
/// once: up to 64 entries of `to` may be overwritten.
///
/// Returns: how many.
HWY_INLINE std::size_t append_indices(std::uint64_t bits, std::size_t first, std::uint16_t* to) {
  const auto count = static_cast<std::size_t>(std::popcount(bits));
#if HWY_TARGET == HWY_AVX3_DL
  const hn::ScalableTag<std::uint16_t> d;
  const auto low = static_cast<std::uint32_t>(bits);
  const auto high = static_cast<std::uint32_t>(bits >> 32);
  const auto indices = hn::Iota(d, static_cast<std::uint16_t>(first));
  const auto next_indices = hn::Add(indices, hn::Set(d, 32));
  hn::StoreU(hn::Vec<decltype(d)>{_mm512_maskz_compress_epi16(low, indices.raw)}, d, to);
  hn::StoreU(hn::Vec<decltype(d)>{_mm512_maskz_compress_epi16(high, next_indices.raw)}, d,
             to + std::popcount(low));
#else
  // Most groups of a sparse block have at most this many, so the branch is predicted.
  constexpr std::size_t kAtOnce = 4;
  std::size_t i = 0;
  do {
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      to[i + k] = static_cast<std::uint16_t>(first + (std::countr_zero(bits) & 63));
      bits &= bits - 1;
    }
    i += kAtOnce;
  } while (bits != 0);
#endif
  return count;
}

/// A group for the end of a block, padded with zeros.
class PaddedGroup {
 public:
  PaddedGroup(const std::byte* from, std::size_t bytes) { std::memcpy(bytes_, from, bytes); }
  [[nodiscard]] const std::byte* data() const { return bytes_; }

 private:
  alignas(64) std::byte bytes_[kGroupElements * sizeof(std::uint32_t)] = {};
};

/// Prefetches what is needed some groups later.  The hardware prefetcher stops at the end of each
/// page; the next block usually follows this one in memory.
template <typename Bits>
HWY_INLINE void prefetch_group(const std::byte* before, const std::byte* after) {
  constexpr std::size_t kAhead = 4096;
  constexpr std::size_t kLine = 64;
#pragma GCC unroll 4
  for (std::size_t at = 0; at < kGroupElements * sizeof(Bits); at += kLine) {
    hwy::Prefetch(before + kAhead + at);
    hwy::Prefetch(after + kAhead + at);
  }
}

#if HWY_ARCH_X86

/// A vector that is loaded once. gcc 12 repeats the load for each use; if vectors straddle cache
/// lines, that halves the speed of reading a block from memory.
template <typename D>
HWY_INLINE hn::Vec<D> load_once(D d, const std::byte* from) {
  hn::Vec<D> v = load_bytes(d, from);
  asm("" : "+v"(v.raw));
  return v;
}

#endif

#if HWY_TARGET == HWY_AVX3_DL

// The differences are compressed in their own width to the end of their list, and then widened from
// its front: the writer never overtakes the reader, since both reach the end together.

template <typename Element>
std::byte* narrow_differences(Changes& changes) {
  auto* const begin = reinterpret_cast<std::byte*>(changes.difference.data());
  return begin + kBlockElements * (sizeof(std::int32_t) - sizeof(typename Element::Bits));
}

/// Appends the changes of one vector to the first `count` changes.
///
/// Returns: the new count.
template <typename Element, typename V>
HWY_INLINE std::size_t add_vector(V before, V after, std::size_t first, std::size_t count,
                                  std::uint16_t* positions, std::byte* differences) {
  using Bits = typename Element::Bits;
  const auto differ = hn::Ne(before, after);
  const V difference = hn::Sub(ordered<Element>(after), ordered<Element>(before));
  const std::uint64_t bits = differ.raw;
  __m512i packed;
  if constexpr (sizeof(Bits) == 1) {
    packed = _mm512_maskz_compress_epi8(differ.raw, difference.raw);
    append_indices(bits, first, positions + count);
  } else if constexpr (sizeof(Bits) == 2) {
    packed = _mm512_maskz_compress_epi16(differ.raw, difference.raw);
    const auto indices = hn::Iota(hn::DFromV<V>(), static_cast<std::uint16_t>(first));
    _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi16(differ.raw, indices.raw));
  } else {
    packed = _mm512_maskz_compress_epi32(differ.raw, difference.raw);
    const hn::Half<hn::ScalableTag<std::uint16_t>> half;
    const auto indices = hn::Iota(half, static_cast<std::uint16_t>(first));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + count),
                        _mm256_maskz_compress_epi16(differ.raw, indices.raw));
  }
  _mm512_storeu_si512(differences + count * sizeof(Bits), packed);
  return count + static_cast<std::size_t>(std::popcount(bits));
}

/// Appends the changes of one group to the first `count` changes.
///
/// Returns: the new count.
template <typename Element>
HWY_INLINE std::size_t add_group(const std::byte* before, const std::byte* after, std::size_t first,
                                 std::size_t count, Changes& changes) {
  const hn::ScalableTag<typename Element::Bits> d;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kGroupElements; i += hn::MaxLanes(d)) {
    const std::size_t at = i * sizeof(typename Element::Bits);
    count =
        add_vector<Element>(load_once(d, before + at), load_once(d, after + at), first + i, count,
                            changes.position.data(), narrow_differences<Element>(changes));
  }
  return count;
}

/// Widens the differences to the type in `Changes`.
template <typename Element>
HWY_INLINE void complete_differences(ByteSpan, ByteSpan, Changes& changes) {
  using Bits = typename Element::Bits;
  if constexpr (sizeof(Bits) < sizeof(std::int32_t)) {
    const hn::ScalableTag<std::int32_t> d;
    const hn::Rebind<std::make_signed_t<Bits>, decltype(d)> narrow;
    const std::byte* const from = narrow_differences<Element>(changes);
    for (std::size_t i = 0; i < changes.count; i += hn::MaxLanes(d)) {
      const auto difference = hn::PromoteTo(d, load_bytes(narrow, from + i * sizeof(Bits)));
      hn::StoreU(difference, d, changes.difference.data() + i);
    }
  }
}

#else

/// Appends the positions of the changes of one group to the first `count` positions.
///
/// Returns: the new count.
template <typename Element>
HWY_INLINE std::size_t add_group(const std::byte* before, const std::byte* after, std::size_t first,
                                 std::size_t count, Changes& changes) {
  using Bits = typename Element::Bits;
  const hn::ScalableTag<Bits> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  std::uint64_t differ = 0;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kGroupElements; i += kLanes) {
    const std::size_t at = i * sizeof(Bits);
    differ |= bits_of(d, hn::Ne(load_bytes(d, before + at), load_bytes(d, after + at))) << i;
  }
  return count + append_indices(differ, first, changes.position.data() + count);
}

/// Looks up the differences at the positions.
template <typename Element>
HWY_INLINE void complete_differences(ByteSpan old_block, ByteSpan new_block, Changes& changes) {
  using Bits = typename Element::Bits;
  for (std::size_t i = 0; i < changes.count; ++i) {
    const std::size_t at = changes.position[i] * sizeof(Bits);
    changes.difference[i] =
        Element::difference(load<Bits>(old_block.data() + at), load<Bits>(new_block.data() + at));
  }
}

#endif

/// Lists the indices of differences larger than one unit.
///
/// Requires: 64 readable entries after the end of both lists.
/// Returns: how many.
HWY_INLINE std::size_t list_exceptions(const std::int32_t* differences, std::size_t size,
                                       std::uint16_t* exceptions) {
  const hn::ScalableTag<std::int32_t> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  std::size_t count = 0;
  for (std::size_t first = 0; first < size; first += kGroupElements) {
    std::uint64_t large = 0;
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kGroupElements; i += kLanes) {
      const auto is_unit = hn::Eq(hn::Abs(hn::LoadU(d, differences + first + i)), hn::Set(d, 1));
      large |= bits_of(d, hn::Not(is_unit)) << i;
    }
    const std::size_t left = size - first;
    if (left < kGroupElements) large &= (std::uint64_t{1} << left) - 1;
    count += append_indices(large, first, exceptions + count);
  }
  return count;
}

/// The number of equal bytes at the front: whole groups, or all.
template <typename Bits>
HWY_INLINE std::size_t equal_bytes(const std::byte* before, const std::byte* after,
                                   std::size_t size) {
  const hn::ScalableTag<std::uint8_t> d;
  constexpr std::size_t kGroupBytes = kGroupElements * sizeof(Bits);
  std::size_t group = 0;
  for (; group + kGroupBytes <= size; group += kGroupBytes) {
    prefetch_group<Bits>(before + group, after + group);
    auto differ = hn::Zero(d);
#pragma GCC unroll 16
    for (std::size_t at = group; at < group + kGroupBytes; at += hn::MaxLanes(d)) {
      differ = hn::Or(differ, hn::Xor(load_bytes(d, before + at), load_bytes(d, after + at)));
    }
    if (!hn::AllTrue(d, hn::Eq(differ, hn::Zero(d)))) return group;
  }
  if (group < size && std::memcmp(before + group, after + group, size - group) != 0) return group;
  return size;
}

/// Appends the changes of one span to the first `count` changes.
///
/// Returns: the new count.
template <typename Element>
HWY_INLINE std::size_t add_span(ByteSpan old_block, ByteSpan new_block, std::size_t span,
                                std::size_t count, Changes& changes) {
  using Bits = typename Element::Bits;
  constexpr std::size_t kGroupBytes = kGroupElements * sizeof(Bits);
  constexpr std::size_t kSpanBytes = kSpanGroups * kGroupBytes;
  const std::byte* const before = old_block.data();
  const std::byte* const after = new_block.data();
  const std::size_t end = std::min(new_block.size(), (span + 1) * kSpanBytes);
  std::size_t at = span * kSpanBytes;
  for (; at + kGroupBytes <= end; at += kGroupBytes) {
    prefetch_group<Bits>(before + at, after + at);
    count = add_group<Element>(before + at, after + at, at / sizeof(Bits), count, changes);
  }
  if (at < end) {
    count = add_group<Element>(PaddedGroup(before + at, end - at).data(),
                               PaddedGroup(after + at, end - at).data(), at / sizeof(Bits), count,
                               changes);
  }
  return count;
}

/// The contract of kernels::find_changes.  If there are changes, calls on_span(span) for every span
/// of the block, in order, when its elements are in the cache and the next ones are being
/// prefetched.
template <typename Element, typename OnSpan>
HWY_INLINE void collect_changes(ByteSpan old_block, ByteSpan new_block, Changes& changes,
                                OnSpan&& on_span) {
  using Bits = typename Element::Bits;
  constexpr std::size_t kSpanBytes = kSpanGroups * kGroupElements * sizeof(Bits);
  const std::size_t size = new_block.size();
  const std::size_t equal = equal_bytes<Bits>(old_block.data(), new_block.data(), size);
  changes.count = 0;
  changes.exception_count = 0;
  if (equal == size) return;
  std::size_t count = 0;
  for (std::size_t span = 0; span * kSpanBytes < size; ++span) {
    if ((span + 1) * kSpanBytes > equal) {
      count = add_span<Element>(old_block, new_block, span, count, changes);
    }
    on_span(span);
  }
  changes.count = count;
  complete_differences<Element>(old_block, new_block, changes);
  changes.exception_count =
      list_exceptions(changes.difference.data(), count, changes.exception.data());
}

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
