// ClassIndex: the class of each element of an old block, and the number of members of each class
// before it.  XR and XS need it to convert between ranks and positions.
//
// A group is 64 elements, one word of a bit plane:
//
//     group        0          1          2
//     plane[0..3]  64 bits    64 bits    64 bits   bit p of the class of each element
//     before[c]    0          7          12        members of class c in the groups before it
//
// and a span is 32 groups: a rank is looked up in two steps, first the span, then the group in it.
//
// Elements past the end of the block belong to no class: their bits are 1 in all four planes.
//
// Internal to kernels/. Compiled once for each Highway target: include it in a file of kernels/simd
// after <hwy/highway.h>.
//
// Threads: pure functions.
#if defined(WEIGHTFS_SIMD_CLASS_INDEX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_CLASS_INDEX_INL
#undef WEIGHTFS_SIMD_CLASS_INDEX_INL
#else
#define WEIGHTFS_SIMD_CLASS_INDEX_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block/block.hpp"
#include "kernels/scalar/xr.hpp"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of a size known at compile time: the widest on x86, 16 bytes elsewhere.
#if HWY_ARCH_X86
template <typename Lane>
using Vectors = hn::ScalableTag<Lane>;
#else
template <typename Lane>
using Vectors = hn::CappedTag<Lane, 16 / sizeof(Lane)>;
#endif
template <typename Lane>
inline constexpr std::size_t kLanes = hn::MaxLanes(Vectors<Lane>());

inline constexpr std::size_t kGroup = 64;  // elements
inline constexpr std::size_t kGroups = kBlockElements / kGroup;
inline constexpr std::size_t kSpan = 32;  // groups that are counted, and searched, together
inline constexpr std::size_t kSpans = kGroups / kSpan;
inline constexpr unsigned kPlanes = 4;

struct ClassIndex {
  alignas(64) std::uint64_t plane[kPlanes][kGroups];
  alignas(64) std::uint16_t before[kClasses][kGroups];
  alignas(64) std::uint16_t before_span[kClasses][kSpans];
  ClassCounts total;
};

/// Finds the members of one class in any group.
class Members {
 public:
  Members(const ClassIndex& index, unsigned cls) noexcept
      : plane_(&index.plane[0][0]),
        flip0_(flip(cls, 0)),
        flip1_(flip(cls, 1)),
        flip2_(flip(cls, 2)),
        flip3_(flip(cls, 3)) {}

  HWY_INLINE std::uint64_t operator()(std::size_t group) const {
    const std::uint64_t* const at = plane_ + group;
    return (at[0] ^ flip0_) & (at[kGroups] ^ flip1_) & (at[2 * kGroups] ^ flip2_) &
           (at[3 * kGroups] ^ flip3_);
  }

 private:
  static std::uint64_t flip(unsigned cls, unsigned bit) noexcept {
    return std::uint64_t{cls >> bit & 1} - 1;
  }

  const std::uint64_t* plane_;
  std::uint64_t flip0_, flip1_, flip2_, flip3_;
};

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2 && HWY_TARGET != HWY_AVX3_DL

/// The members of a class in four groups.
class MembersOfFour {
 public:
  MembersOfFour(const ClassIndex& index, unsigned cls) noexcept
      : plane_(&index.plane[0][0]), flip_{flip(cls, 0), flip(cls, 1), flip(cls, 2), flip(cls, 3)} {}

  HWY_INLINE __m256i operator()(std::size_t group) const {
    const auto agree = [&](unsigned p) HWY_ATTR {
      const auto* const at = reinterpret_cast<const __m256i*>(plane_ + p * kGroups + group);
      return _mm256_xor_si256(_mm256_load_si256(at), flip_[p]);
    };
    return _mm256_and_si256(_mm256_and_si256(agree(0), agree(1)),
                            _mm256_and_si256(agree(2), agree(3)));
  }

 private:
  static __m256i flip(unsigned cls, unsigned bit) noexcept {
    return _mm256_set1_epi64x(static_cast<long long>(cls >> bit & 1) - 1);
  }

  const std::uint64_t* plane_;
  __m256i flip_[kPlanes];
};

#endif

#if HWY_TARGET == HWY_AVX3_DL

/// The members of a class in eight groups.
class MembersOfEight {
 public:
  MembersOfEight(const ClassIndex& index, unsigned cls) noexcept
      : plane_(&index.plane[0][0]), flip_{flip(cls, 0), flip(cls, 1), flip(cls, 2), flip(cls, 3)} {}

  HWY_INLINE __m512i operator()(std::size_t group) const {
    const auto agree = [&](unsigned p) HWY_ATTR {
      return _mm512_xor_si512(_mm512_load_si512(plane_ + p * kGroups + group), flip_[p]);
    };
    return _mm512_and_si512(_mm512_and_si512(agree(0), agree(1)),
                            _mm512_and_si512(agree(2), agree(3)));
  }

 private:
  static __m512i flip(unsigned cls, unsigned bit) noexcept {
    return _mm512_set1_epi64(static_cast<long long>(cls >> bit & 1) - 1);
  }

  const std::uint64_t* plane_;
  __m512i flip_[kPlanes];
};

#endif

/// Calls visit.operator()<kKind>().
template <typename Visit>
HWY_INLINE decltype(auto) with_kind(Kind kind, Visit&& visit) {
  switch (kind) {
    case Kind::u8:
      break;
    case Kind::bf16:
      return visit.template operator()<Kind::bf16>();
    case Kind::f16:
      return visit.template operator()<Kind::f16>();
    case Kind::f32:
      return visit.template operator()<Kind::f32>();
    case Kind::f8_e4m3:
      return visit.template operator()<Kind::f8_e4m3>();
    case Kind::f8_e5m2:
      return visit.template operator()<Kind::f8_e5m2>();
  }
  return visit.template operator()<Kind::u8>();
}

/// The exponent fields of kLanes<uint8_t> elements, one per byte.
template <Kind kKind>
HWY_INLINE hn::Vec<Vectors<std::uint8_t>> load_exponents(const std::uint8_t* HWY_RESTRICT from) {
  const Vectors<std::uint8_t> d8;
  const Vectors<std::uint16_t> d16;
  const Vectors<std::uint32_t> d32;
  const auto get = [&](std::size_t i)
                       HWY_ATTR { return hn::LoadU(d8, from + i * kLanes<std::uint8_t>); };
  // Without the sign the exponent begins at the element's highest bit, so its last byte contains
  // all of it.
  const auto last_bytes = [&]() HWY_ATTR {
    if constexpr (width_bytes(kKind) == 1) {
      const auto x = get(0);
      return hn::Add(x, x);
    } else if constexpr (width_bytes(kKind) == 2) {
      const auto low = hn::Add(hn::BitCast(d16, get(0)), hn::BitCast(d16, get(0)));
      const auto high = hn::Add(hn::BitCast(d16, get(1)), hn::BitCast(d16, get(1)));
      return hn::ConcatOdd(d8, hn::BitCast(d8, high), hn::BitCast(d8, low));
    } else {
      const auto halves = [&](std::size_t i) HWY_ATTR {
        const auto low = hn::ShiftLeft<1>(hn::BitCast(d32, get(i)));
        const auto high = hn::ShiftLeft<1>(hn::BitCast(d32, get(i + 1)));
        return hn::BitCast(d8, hn::ConcatOdd(d16, hn::BitCast(d16, high), hn::BitCast(d16, low)));
      };
      const auto low = halves(0);
      return hn::ConcatOdd(d8, halves(2), low);
    }
  };
  constexpr int kBits = std::popcount(exponent_field(kKind).mask);
  auto exponents = last_bytes();
  if constexpr (kBits == 0) exponents = hn::Zero(d8);
  if constexpr (kBits % 8 != 0) exponents = hn::ShiftRight<8 - kBits>(exponents);
  return exponents;
}

/// Stores the class of each element of a block.
template <Kind kKind>
HWY_INLINE void list_classes(ByteSpan old_block, unsigned ebase_field,
                             std::uint8_t* HWY_RESTRICT classes) {
  const Vectors<std::uint8_t> d8;
  constexpr std::size_t kStep = kLanes<std::uint8_t> * width_bytes(kKind);
  const auto ebase = hn::Set(d8, static_cast<std::uint8_t>(ebase_field));
  const auto top = hn::Set(d8, std::uint8_t{kClasses - 1});
  const auto* const from = reinterpret_cast<const std::uint8_t*>(old_block.data());
  const auto store_at = [&](const std::uint8_t* elements, std::size_t at) HWY_ATTR {
    const auto exponents = load_exponents<kKind>(elements);
    const auto each = hn::Min(hn::SaturatedSub(exponents, ebase), top);
    hn::StoreU(each, d8, classes + at / width_bytes(kKind));
  };
  std::size_t at = 0;
  for (; at + kStep <= old_block.size(); at += kStep) store_at(from + at, at);
  if (at == old_block.size()) return;
  std::uint8_t last[kStep] = {};
  std::memcpy(last, from + at, old_block.size() - at);
  store_at(last, at);
}

/// Stores the class bits of one group, and calls see(exponents) for each vector of it.
template <Kind kKind, typename See>
HWY_INLINE void index_group(const std::uint8_t* HWY_RESTRICT from, std::size_t group,
                            hn::Vec<Vectors<std::uint8_t>> ebase, ClassIndex& index, See&& see) {
  const Vectors<std::uint8_t> d8;
  const auto top = hn::Set(d8, std::uint8_t{kClasses - 1});
  for (std::size_t at = 0; at < kGroup; at += kLanes<std::uint8_t>) {
    const auto exponents = load_exponents<kKind>(from + at * width_bytes(kKind));
    see(exponents);
    const auto classes = hn::Min(hn::SaturatedSub(exponents, ebase), top);
    const auto store_bit = [&](unsigned p) HWY_ATTR {
      auto* const bits = reinterpret_cast<std::uint8_t*>(&index.plane[p][group]) + at / 8;
      const auto bit = hn::Set(d8, static_cast<std::uint8_t>(1U << p));
      hn::StoreMaskBits(d8, hn::TestBit(classes, bit), bits);
    };
    store_bit(0);
    store_bit(1);
    store_bit(2);
    store_bit(3);
  }
}

/// index_group() for the elements after the last whole group.  Elements past the end belong to no
/// class, and see() gets zeros for them.
template <Kind kKind, typename See>
HWY_INLINE void index_tail(ByteSpan tail, std::size_t group, hn::Vec<Vectors<std::uint8_t>> ebase,
                           ClassIndex& index, See&& see) {
  alignas(64) std::uint8_t last[kGroup * width_bytes(kKind)] = {};
  std::memcpy(last, tail.data(), tail.size());
  index_group<kKind>(last, group, ebase, index, see);
  const std::size_t elements = tail.size() / width_bytes(kKind);
  for (auto& plane : index.plane) plane[group] |= ~std::uint64_t{0} << elements;
}

/// Inclusive prefix sums of the lanes.
HWY_INLINE hn::Vec<Vectors<std::uint16_t>> prefix_sums(hn::Vec<Vectors<std::uint16_t>> v) {
  const Vectors<std::uint16_t> d;
  v = hn::Add(v, hn::ShiftLeftLanes<1>(d, v));
  v = hn::Add(v, hn::ShiftLeftLanes<2>(d, v));
  v = hn::Add(v, hn::ShiftLeftLanes<4>(d, v));
  if constexpr (kLanes<std::uint16_t> >= 16) {
    const auto before = hn::SwapAdjacentBlocks(hn::Broadcast<7>(v));
    v = hn::Add(v, hn::OddEvenBlocks(before, hn::Zero(d)));
  }
  if constexpr (kLanes<std::uint16_t> >= 32) {
    const auto last = hn::Broadcast<7>(v);
    const auto before = hn::OddEvenBlocks(last, hn::SwapAdjacentBlocks(last));
    v = hn::Add(v, hn::ConcatLowerLower(d, before, hn::Zero(d)));
  }
  return v;
}

/// The number of one bits in each word.
HWY_INLINE hn::Vec<Vectors<std::uint64_t>> count_bits(hn::Vec<Vectors<std::uint64_t>> words) {
#if HWY_TARGET == HWY_AVX3_DL
  return hn::PopulationCount(words);
#else
  return hn::SumsOf8(hn::PopulationCount(hn::BitCast(Vectors<std::uint8_t>(), words)));
#endif
}

/// Stores the number of members of each class in each group of a span to count[class].
HWY_INLINE void count_span(const ClassIndex& index, std::size_t span,
                           std::uint16_t (*HWY_RESTRICT count)[kSpan]) {
  const Vectors<std::uint64_t> d;
  const hn::Rebind<std::uint16_t, Vectors<std::uint64_t>> d16;
  for (std::size_t at = 0; at < kSpan; at += kLanes<std::uint64_t>) {
    const auto plane = [&](unsigned p)
                           HWY_ATTR { return hn::Load(d, &index.plane[p][span * kSpan + at]); };
    const auto p0 = plane(0), p1 = plane(1), p2 = plane(2), p3 = plane(3);
    const auto count_four = [&](unsigned cls, auto high) HWY_ATTR {
      const auto odd = hn::And(high, p0);
      const auto even = hn::AndNot(p0, high);
      hn::StoreU(hn::TruncateTo(d16, count_bits(hn::AndNot(p1, even))), d16, count[cls] + at);
      hn::StoreU(hn::TruncateTo(d16, count_bits(hn::AndNot(p1, odd))), d16, count[cls + 1] + at);
      hn::StoreU(hn::TruncateTo(d16, count_bits(hn::And(p1, even))), d16, count[cls + 2] + at);
      hn::StoreU(hn::TruncateTo(d16, count_bits(hn::And(p1, odd))), d16, count[cls + 3] + at);
    };
    count_four(0, hn::Not(hn::Or(p2, p3)));
    count_four(4, hn::AndNot(p3, p2));
    count_four(8, hn::AndNot(p2, p3));
  }
}

/// Stores the running counts of one class in one span, and adds the span to its total.
HWY_INLINE void sum_span(const std::uint16_t* HWY_RESTRICT count, unsigned cls, std::size_t span,
                         ClassIndex& index) {
  const Vectors<std::uint16_t> d;
  std::uint32_t sum = index.total[cls];
  index.before_span[cls][span] = static_cast<std::uint16_t>(sum);
  for (std::size_t at = 0; at < kSpan; at += kLanes<std::uint16_t>) {
    const auto counts = hn::Load(d, count + at);
    const auto sums = prefix_sums(counts);
    const auto base = hn::Set(d, static_cast<std::uint16_t>(sum));
    hn::Store(hn::Add(hn::Sub(sums, counts), base), d, &index.before[cls][span * kSpan + at]);
    sum += hn::ExtractLane(sums, kLanes<std::uint16_t> - 1);
  }
  index.total[cls] = sum;
}

/// Fills everything except the planes.  Calls on_count(span, class) before each step.
template <typename OnCount>
HWY_NOINLINE void count_classes(std::size_t spans, ClassIndex& index, OnCount&& on_count) {
  alignas(64) std::uint16_t count[kClasses][kSpan];
  index.total = {};
  for (std::size_t span = 0; span < spans; ++span) {
    count_span(index, span, count);
    for (unsigned c = 0; c < kClasses; ++c) {
      on_count(span, c);
      sum_span(count[c], c, span, index);
    }
  }
  for (unsigned c = 0; c < kClasses; ++c) {
    const auto total = static_cast<std::uint16_t>(index.total[c]);
    std::fill(index.before[c] + spans * kSpan, index.before[c] + kGroups, total);
    std::fill(index.before_span[c] + spans, index.before_span[c] + kSpans, total);
  }
}

/// Indexes the classes of `old_block`.  The two passes call on_group(group) and on_count(span,
/// class), which may prefetch what is needed next.
///
/// Words of `plane` after the span of the last element are undefined.
template <Kind kKind, typename OnGroup, typename OnCount>
HWY_INLINE void build_class_index(ByteSpan old_block, unsigned ebase_field, ClassIndex& index,
                                  OnGroup&& on_group, OnCount&& on_count) {
  constexpr std::size_t kGroupBytes = kGroup * width_bytes(kKind);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(old_block.data());
  const auto ebase = hn::Set(Vectors<std::uint8_t>(), static_cast<std::uint8_t>(ebase_field));
  const auto see_nothing = [](const auto&) HWY_ATTR {};
  const std::size_t whole = old_block.size() / kGroupBytes;
  for (std::size_t group = 0; group < whole; ++group) {
    on_group(group);
    index_group<kKind>(from + group * kGroupBytes, group, ebase, index, see_nothing);
  }
  std::size_t groups = whole;
  if (const std::size_t tail = old_block.size() - whole * kGroupBytes; tail > 0) {
    index_tail<kKind>(old_block.last(tail), whole, ebase, index, see_nothing);
    ++groups;
  }
  const std::size_t spans = (groups + kSpan - 1) / kSpan;
  for (auto& plane : index.plane)
    std::fill(plane + groups, plane + spans * kSpan, ~std::uint64_t{0});
  count_classes(spans, index, on_count);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace weightfs::kernels::simd
HWY_AFTER_NAMESPACE();
#endif  // HWY_SCALAR, which has no vectors

#endif  // per-target include guard
