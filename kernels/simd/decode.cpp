// Decodes XR and XS in passes, each over all lists:
//
//     old block  --> class index; with the counts of the header it determines the lists
//     U          --> positions of its one bits: they are the running sums of the unary codes
//     U, L       --> ranks, class by class
//     ranks      --> positions.  In a class with few changes each rank is looked up in the class
//                    index.  A class with many makes a bitmap of ranks, and each group deposits its
//                    share of it into its members.  Lists of unchanged members are inverted.
//     old block  --> new block
//     positions  --> each element moves by one unit, according to its sign; the few that move by
//                    more (direct changes and exceptions, in lists of their own) then move by the
//                    rest
//
// The passes over the lists are bound by instructions and the copy by memory, so the passes
// prefetch what the copy and the next block will need.
//
// Coded planes are copied one after another into memory with slack, so that loads of whole words
// stay within it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/decode.cpp"
#include <hwy/foreach_target.h>
// Highway compiles the code below once for each target.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "kernels/block/bits.hpp"
#include "kernels/block/change_log.hpp"
#include "kernels/block/copy_block.hpp"
#include "kernels/block/ordered.hpp"
#include "kernels/scalar/scalar.hpp"
#include "kernels/scalar/xr.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/dense_decode-inl.hpp"
#include "kernels/simd/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

decltype(Variant::decode_block) decoder() { return scalar::decode_block; }
decltype(Variant::decode_logged) logging_decoder() { return scalar::decode_logged; }

#else

constexpr std::size_t kSlack =
    128;  // elements past the end of an array that may be read or written

/// A class with at least this many changes is decoded faster with a bitmap.
constexpr std::uint32_t kLongList = 1024;

constexpr std::size_t kLine = 64;          // bytes of a cache line
constexpr std::size_t kFetchAhead = 8192;  // bytes

/// Prefetches memory for writing; does nothing on processors that cannot.
HWY_INLINE void fetch_to_write(const std::byte* at) {
#if HWY_ARCH_X86
  asm volatile("prefetchw %0" : : "m"(*at));  // the builtin emits it only with a compiler flag
#else
  __builtin_prefetch(at, 1, 2);
#endif
}

/// Prefetches memory for reading.  Takes an address as a number, since no pointer may leave its
/// array; a hint for memory that does not exist is harmless.
HWY_INLINE void fetch_to_read(std::uintptr_t at) {
  __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2);
}

HWY_INLINE std::uintptr_t address_of(ByteSpan bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data());
}

/// Prefetches what follows a full block in memory, line by line, up to the size of the block:
/// blocks are decoded in order, so that is the next one.
class NextBlock {
 public:
  NextBlock(ByteSpan block, bool is_full) noexcept
      : at_(address_of(block) + block.size()), end_(at_ + (is_full ? block.size() : 0)) {}

  HWY_INLINE void fetch_line() {
    fetch_to_read(at_);
    at_ += at_ < end_ ? kLine : 0;
  }

 private:
  std::uintptr_t at_, end_;
};

/// The planes of a coded block, each with slack.
struct Planes {
  const std::byte* unary;
  const std::byte* rest;
};

HWY_INLINE const std::byte* copy_with_slack(ByteSpan plane, Scratch& scratch) {
  auto* const copy = scratch.take<std::byte>(plane.size() + kSlack);
  if (!plane.empty()) std::memcpy(copy, plane.data(), plane.size());
  std::memset(copy + plane.size(), 0, kSlack);
  return copy;
}

/// The field of `width` <= 57 bits at bit `offset` of a plane with slack.
HWY_INLINE std::uint64_t field_at(const std::byte* plane, std::uint64_t offset, unsigned width) {
  const auto word = load<std::uint64_t>(plane + offset / 8) >> offset % 8;
  return word & ((std::uint64_t{1} << width) - 1);
}

/// Stores the offset of each one bit of `word`, plus `base`, to `to`.  Up to kSlack elements after
/// them may be overwritten.
/// Returns: the end of the offsets.
template <typename Offset>
HWY_INLINE Offset* store_ones(std::uint64_t word, std::uint32_t base, Offset* to) {
  const auto ones = static_cast<unsigned>(std::popcount(word));
#if HWY_TARGET == HWY_AVX3_DL
  const Vectors<Offset> d;
  const hn::Rebind<std::uint8_t, Vectors<Offset>> d8;
  alignas(64) std::uint8_t offsets[64];
  const auto all = hn::Iota(Vectors<std::uint8_t>(), std::uint8_t{0});
  const __m512i packed = _mm512_maskz_compress_epi8(word, all.raw);
  _mm512_store_si512(offsets, packed);
  for (std::size_t i = 0; i < 64; i += kLanes<Offset>) {
    const auto wide = hn::PromoteTo(d, hn::Load(d8, offsets + i));
    hn::StoreU(hn::Add(wide, hn::Set(d, static_cast<Offset>(base))), d, to + i);
  }
#else
#if WEIGHTFS_DENSE_TARGET
  constexpr unsigned kMany = 12;
  if (ones >= kMany) return store_ones_by_byte(word, base, to);
#endif
  for (unsigned i = 0; i < ones; i += 4) {
    const auto store_one = [&](unsigned j) HWY_ATTR {
      to[i + j] = static_cast<Offset>(base + static_cast<unsigned>(std::countr_zero(word)));
      word &= word - 1;
    };
    store_one(0);
    store_one(1);
    store_one(2);
    store_one(3);
  }
#endif
  return to + ones;
}

/// Offsets of the one bits of U; ones[-1] is -1, as if there were one before the first bit.
HWY_NOINLINE const std::uint32_t* find_ones(const std::byte* unary, std::size_t size,
                                            std::size_t count, Scratch& scratch) {
  auto* const ones = scratch.take<std::uint32_t>(1 + count + kSlack);
  ones[0] = ~0U;
  std::uint32_t* to = ones + 1;
  for (std::size_t at = 0; at < size; at += 8) {
    to = store_ones(load<std::uint64_t>(unary + at), static_cast<std::uint32_t>(8 * at), to);
  }
  return ones + 1;
}

#if HWY_TARGET == HWY_AVX3_DL

/// The numbers of a list, 16 at a time; none is checked.
///
/// Returns: the sum of all low bits.
HWY_INLINE std::uint32_t add_up_numbers(const std::uint32_t* HWY_RESTRICT ones, std::uint32_t count,
                                        const std::byte* HWY_RESTRICT rest, std::uint64_t lows_at,
                                        unsigned low_bits, std::uint32_t begin,
                                        std::uint32_t* HWY_RESTRICT numbers) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i widths = _mm512_set1_epi32(static_cast<int>(low_bits));
  const __m512i offsets = _mm512_mullo_epi32(lanes, widths);
  __m512i highs_begin = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(begin)), lanes);
  __m512i order = lanes;
  __m512i sum = _mm512_setzero_si512();
  for (std::uint32_t i = 0; i < count; i += 16) {
    const __m512i fields = gather_fields<16>(rest, lows_at, offsets, widths);
    const __m512i lows = _mm512_maskz_mov_epi32(first_lanes(count - i), fields);
    const __m512i sums = _mm512_add_epi32(sum, running_sums(lows));
    const __m512i highs = _mm512_sub_epi32(_mm512_loadu_si512(ones + i), highs_begin);
    const __m512i shifted = _mm512_sllv_epi32(highs, widths);
    _mm512_storeu_si512(numbers + i, _mm512_add_epi32(_mm512_add_epi32(shifted, sums), order));
    sum = last_lane(sums);
    order = _mm512_add_epi32(order, _mm512_set1_epi32(16));
    highs_begin = _mm512_add_epi32(highs_begin, _mm512_set1_epi32(16));
    lows_at += std::uint64_t{16} * low_bits;
  }
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(sum)));
}

#else

HWY_INLINE std::uint32_t add_up_numbers(const std::uint32_t* HWY_RESTRICT ones, std::uint32_t count,
                                        const std::byte* HWY_RESTRICT rest, std::uint64_t lows_at,
                                        unsigned low_bits, std::uint32_t begin,
                                        std::uint32_t* HWY_RESTRICT numbers) {
  std::uint32_t lows = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    lows += static_cast<std::uint32_t>(field_at(rest, lows_at, low_bits));
    lows_at += low_bits;
    numbers[i] = ((ones[i] - begin - i) << low_bits) + lows + i;
  }
  return lows;
}

#endif

/// Decodes a list of ascending numbers: their unary parts end at ones[0], ones[1], ..., their low
/// bits begin at bit `lows_at` of `rest`.
///
/// Requires: kSlack elements past the end of `numbers`.
/// Returns: false if they are not all below `end`; `numbers` is then undefined.
HWY_NOINLINE bool read_numbers(const std::uint32_t* HWY_RESTRICT ones, std::uint32_t count,
                               const std::byte* HWY_RESTRICT rest, std::uint64_t lows_at,
                               unsigned low_bits, std::uint32_t end,
                               std::uint32_t* HWY_RESTRICT numbers) {
  if (count == 0) return true;
  const std::uint32_t begin = ones[-1] + 1;
  // Even the largest low bits of a list add up to less than 2^32: see rice().
  const std::uint32_t lows = add_up_numbers(ones, count, rest, lows_at, low_bits, begin, numbers);
  const std::uint64_t highs = ones[count - 1] - begin - (count - 1);
  return (highs << low_bits) + lows + count - 1 < end;
}

/// How many of 32 ascending counts are at most `rank`.
HWY_INLINE std::size_t count_at_most(const std::uint16_t* counts, std::uint32_t rank) {
  static_assert(kSpan == 32 && kSpans == 32);
  const Vectors<std::uint16_t> d;
  const auto limit = hn::Set(d, static_cast<std::uint16_t>(rank));
  std::size_t above = 0;
  for (std::size_t at = 0; at < kSpan; at += kLanes<std::uint16_t>) {
    above += hn::CountTrue(d, hn::Gt(hn::Load(d, counts + at), limit));
  }
  return kSpan - above;
}

/// Distributes the low bits of `bits` over the one bits of `mask`.
HWY_INLINE std::uint64_t deposit(std::uint64_t bits, std::uint64_t mask) {
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86_64
  return _pdep_u64(bits, mask);
#else
  std::uint64_t all = 0;
  for (; mask != 0; mask &= mask - 1, bits >>= 1) all |= (mask & (0 - mask)) & (0 - (bits & 1));
  return all;
#endif
}

/// The offset of the one bit of `mask` that has `rank` one bits before it.
HWY_INLINE unsigned select_one(std::uint64_t mask, std::uint32_t rank) {
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86_64
  mask = _pdep_u64(std::uint64_t{1} << rank, mask);
#else
  for (; rank > 0; --rank) mask &= mask - 1;
#endif
  return static_cast<unsigned>(std::countr_zero(mask));
}

/// Looks up the positions of the members of `cls` with these ranks.
HWY_NOINLINE std::uint16_t* look_up(const ClassIndex& index, unsigned cls,
                                    const std::uint32_t* HWY_RESTRICT ranks, std::uint32_t count,
                                    NextBlock& next, std::uint16_t* HWY_RESTRICT to) {
  const Members members(index, cls);
  NextBlock fetched = next;  // a copy in registers
  for (std::uint32_t i = 0; i < count; ++i) {
    fetched.fetch_line();
    const std::uint32_t rank = ranks[i];
    const std::size_t first = (count_at_most(index.before_span[cls], rank) - 1) * kSpan;
    const std::size_t group = first + count_at_most(&index.before[cls][first], rank) - 1;
    const unsigned bit = select_one(members(group), rank - index.before[cls][group]);
    to[i] = static_cast<std::uint16_t>(group * kGroup + bit);
  }
  next = fetched;
  return to + count;
}

/// The ranks below `total` that are in the list, or, if `is_inverted`, those that are not, as bits.
/// The rest of the last word, and the word after it, are zero.
HWY_NOINLINE void mark_ranks(const std::uint32_t* HWY_RESTRICT ranks, std::uint32_t count,
                             bool is_inverted, std::uint32_t total,
                             std::uint64_t* HWY_RESTRICT bitmap) {
  std::memset(bitmap, is_inverted ? 0xFF : 0, total / 64 * 8);
  bitmap[total / 64] = is_inverted ? (std::uint64_t{1} << total % 64) - 1 : 0;
  bitmap[total / 64 + 1] = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    bitmap[ranks[i] / 64] ^= std::uint64_t{1} << ranks[i] % 64;
  }
}

/// Positions of the members of `cls` whose ranks are marked.
HWY_NOINLINE std::uint16_t* spread(const ClassIndex& index, unsigned cls, std::size_t groups,
                                   const std::uint64_t* HWY_RESTRICT bitmap,
                                   std::uint16_t* HWY_RESTRICT to) {
  const Members members(index, cls);
  for (std::size_t group = 0; group < groups; ++group) {
    const std::uint32_t rank = index.before[cls][group];
    const std::uint64_t* const from = bitmap + rank / 64;
    const std::uint64_t bits = from[0] >> rank % 64 | from[1] << 1 << (63 - rank % 64);
    const std::uint64_t changed = deposit(bits, members(group));
    to = store_ones(changed, static_cast<std::uint32_t>(group * kGroup), to);
  }
  return to;
}

/// Positions of the changes of one class.  `ranks` is its list, and is overwritten.
HWY_INLINE std::uint16_t* place(const ClassIndex& index, const XrParts& parts, unsigned cls,
                                std::size_t groups, std::uint32_t* HWY_RESTRICT ranks,
                                std::uint64_t* HWY_RESTRICT bitmap, NextBlock& next,
                                std::uint16_t* HWY_RESTRICT to) {
  const bool is_inverted = (parts.inverted >> cls & 1) != 0;
  const bool is_long = parts.changed[cls] >= kLongList;
  if (is_inverted || is_long) {
    mark_ranks(ranks, parts.listed[cls], is_inverted, index.total[cls], bitmap);
  }
  if (is_long) return spread(index, cls, groups, bitmap, to);
  if (is_inverted) {
    std::uint32_t* end = ranks;
    for (std::uint32_t rank = 0; rank < index.total[cls]; rank += 64) {
      end = store_ones(bitmap[rank / 64], rank, end);
    }
  }
  return look_up(index, cls, ranks, parts.changed[cls], next, to);
}

/// Positions of all changes, in the order of their numbers; null if a rank is too large.
HWY_INLINE const std::uint16_t* find_positions(const ClassIndex& index, const XrParts& parts,
                                               const Planes& planes, std::size_t groups,
                                               const std::uint32_t* ones, NextBlock& next,
                                               Scratch& scratch) {
  auto* const positions = scratch.take<std::uint16_t>(parts.change_count + kSlack);
  auto* const ranks = scratch.take<std::uint32_t>(kBlockElements + kSlack);
  auto* const bitmap = scratch.take<std::uint64_t>(kGroups + 2);
  std::uint16_t* to = positions;
  std::uint64_t lows_at = parts.lows_at;
  for (unsigned c = 0; c < kClasses; ++c) {
    const std::uint32_t listed = parts.listed[c];
    const unsigned low_bits = parts.low_bits[c];
    if (!read_numbers(ones, listed, planes.rest, lows_at, low_bits, index.total[c], ranks)) {
      return nullptr;
    }
    to = place(index, parts, c, groups, ranks, bitmap, next, to);
    ones += listed;
    lows_at += std::uint64_t{listed} * low_bits;
  }
  return positions;
}

/// Applies the changes to a block that holds the old elements.
template <typename Element>
class Mover {
 public:
  Mover(const XrParts& parts, const Planes& planes, const std::uint16_t* positions,
        std::span<std::byte> block) noexcept
      : parts_(parts),
        rest_(planes.rest),
        positions_(positions),
        block_(block.data()),
        value_at_(parts.values_at) {}

  /// Moves the unit changes by one unit.
  HWY_NOINLINE void move_units() {
    constexpr std::uint32_t kSigns = 56;  // as many as one field holds at any offset
    // A copy: as far as the compiler knows, storing an element could change what `this` refers to.
    const Mover mover = *this;
    for (std::uint32_t i = parts_.direct_count; i < parts_.change_count; i += kSigns) {
      std::uint64_t signs = field_at(mover.rest_, parts_.signs_at + i, kSigns);
      const std::uint32_t end = std::min(i + kSigns, parts_.change_count);
      for (std::uint32_t j = i; j < end; ++j, signs >>= 1) mover.move(j, (signs & 1) != 0, 1);
    }
  }

  /// Moves the exceptions by what exceeds one unit; the unary codes of their values end at ones[0],
  /// ...
  HWY_NOINLINE bool move_exceptions(const std::uint32_t* numbers, const std::uint32_t* ones) {
    for (std::uint32_t i = 0; i < parts_.exception_count; ++i) {
      if (!move_by_code(parts_.direct_count + numbers[i], ones + i, 0, 1)) return false;
    }
    return true;
  }

  /// Moves the direct changes; the unary codes of their values end at ones[0], ...
  HWY_NOINLINE bool move_direct(const std::uint32_t* ones) {
    Mover mover = *this;
    std::uint32_t i = 0;
    for (unsigned c = 0; c < kClasses && c < parts_.z; ++c) {
      const unsigned order = direct_order(Element::kWidth, parts_.z, c);
      for (const std::uint32_t end = i + parts_.changed[c]; i < end; ++i) {
        if (!mover.move_by_code(i, ones + i, order, 0)) return false;
      }
    }
    value_at_ = mover.value_at_;
    return true;
  }

  /// Where the difference of each change is put from now on: what has moved by then is not.
  /// Returns: it holds those of unit changes.
  HWY_NOINLINE void note_units(typename Element::Bits* differences) {
    differences_ = differences;
    std::fill_n(differences, parts_.direct_count, typename Element::Bits{0});
    constexpr std::uint32_t kSigns = 56;
    for (std::uint32_t i = parts_.direct_count; i < parts_.change_count; i += kSigns) {
      std::uint64_t signs = field_at(rest_, parts_.signs_at + i, kSigns);
      const std::uint32_t end = std::min(i + kSigns, parts_.change_count);
      for (std::uint32_t j = i; j < end; ++j, signs >>= 1) {
        differences[j] = static_cast<typename Element::Bits>(negate_if((signs & 1) != 0, 1));
      }
    }
  }

  /// True if the values read so far fill Q.
  [[nodiscard]] bool at_end() const noexcept { return ends_at(parts_.rest, value_at_); }

 private:
  using Bits = typename Element::Bits;

  HWY_INLINE bool is_negative(std::uint32_t number) const {
    const std::uint64_t at = parts_.signs_at + number;
    return (std::to_integer<unsigned>(rest_[at / 8]) >> at % 8 & 1) != 0;
  }

  HWY_INLINE void move(std::uint32_t number, bool is_negative, std::uint32_t size) const {
    std::byte* const at = block_ + positions_[number] * sizeof(Bits);
    store(at, Element::moved(load<Bits>(at), negate_if(is_negative, size)));
  }

  /// Moves change `number` by 1 + its Exp-Golomb code, whose unary part ends at *one; it has
  /// already moved by `done` units.
  /// Returns: false if the difference is out of range.
  HWY_INLINE bool move_by_code(std::uint32_t number, const std::uint32_t* one, unsigned order,
                               std::uint32_t done) {
    const std::uint32_t bits = one[0] - one[-1] - 1 + order;
    if (bits >= Element::kWidth || value_at_ > 8 * std::uint64_t{parts_.rest.size()}) return false;
    const std::uint64_t v = std::uint64_t{1} << bits | field_at(rest_, value_at_, bits);
    value_at_ += bits;
    const std::uint64_t size = v - (std::uint64_t{1} << order) + 1;
    const bool down = is_negative(number);
    if (size + done > (std::uint64_t{1} << (Element::kWidth - 1)) - (down ? 0 : 1)) return false;
    move(number, down, static_cast<std::uint32_t>(size));
    if (differences_ != nullptr) {
      Bits& difference = differences_[number];
      difference =
          static_cast<Bits>(difference + negate_if(down, static_cast<std::uint32_t>(size)));
    }
    return true;
  }

  const XrParts& parts_;
  const std::byte* rest_;
  const std::uint16_t* positions_;
  std::byte* block_;
  std::uint64_t value_at_;
  Bits* differences_ = nullptr;  // of each change, if somebody wants them
};

#if WEIGHTFS_DENSE_TARGET

/// From here on it is faster to go through all elements than through the changes.
constexpr std::uint32_t kDenseChanges = 6144;

/// The list of a class as a bitmap of the ranks that changed.
/// Returns: false if a rank is too large.
HWY_NOINLINE bool read_bitmap(const XrParts& parts, unsigned cls, const Planes& planes,
                              std::uint64_t lows_at, const std::uint32_t* ones, std::uint32_t total,
                              std::uint32_t* ranks, std::uint64_t* bitmap) {
  const std::uint32_t listed = parts.listed[cls];
  const bool is_inverted = (parts.inverted >> cls & 1) != 0;
  if (listed == 0 || parts.low_bits[cls] > 0) {
    if (!read_numbers(ones, listed, planes.rest, lows_at, parts.low_bits[cls], total, ranks)) {
      return false;
    }
    mark_ranks(ranks, listed, is_inverted, total, bitmap);
    return true;
  }
  const std::uint32_t begin = ones[-1] + 1;
  const std::uint32_t end = ones[listed - 1] + 1;
  if (end - begin > total) return false;
  std::memset(bitmap, 0, (total / 64 + 2) * 8);
  copy_bits(planes.unary, begin, end, bitmap);
  if (!is_inverted) return true;
  for (std::uint32_t i = 0; i <= total / 64; ++i) bitmap[i] = ~bitmap[i];
  bitmap[total / 64] &= (std::uint64_t{1} << total % 64) - 1;
  return true;
}

#if HWY_TARGET == HWY_AVX3_DL

/// Puts all differences into their places.
/// Returns: false if a rank is too large.
template <Kind kKind, typename Bits>
HWY_INLINE bool place_differences(ByteSpan, const ClassIndex& index, const XrParts& parts,
                                  const Planes& planes, std::size_t groups,
                                  const std::uint32_t* ones, const Bits* from, NextBlock& next,
                                  Scratch& scratch, Bits* to) {
  constexpr std::uint32_t kFew = 512;  // are looked up one by one
  auto* const positions = scratch.take<std::uint16_t>(kFew + kSlack);
  auto* const ranks = scratch.take<std::uint32_t>(kBlockElements + kSlack);
  auto* const bitmap = scratch.take<std::uint64_t>(kGroups + 2);
  std::uint64_t lows_at = parts.lows_at;
  for (unsigned c = 0; c < kClasses; ++c) {
    const std::uint32_t listed = parts.listed[c], changed = parts.changed[c];
    const unsigned low_bits = parts.low_bits[c];
    const bool is_few = changed < kFew && (parts.inverted >> c & 1) == 0;
    const bool is_good =
        is_few ? read_numbers(ones, listed, planes.rest, lows_at, low_bits, index.total[c], ranks)
               : read_bitmap(parts, c, planes, lows_at, ones, index.total[c], ranks, bitmap);
    if (!is_good) return false;
    if (is_few) {
      look_up(index, c, ranks, changed, next, positions);
      for (std::uint32_t i = 0; i < changed; ++i) to[positions[i]] = from[i];
    } else {
      spread_differences(index, c, groups, bitmap, from, to);
    }
    from += changed;
    ones += listed;
    lows_at += std::uint64_t{listed} * low_bits;
  }
  return true;
}

#else

template <Kind kKind, typename Bits>
HWY_INLINE bool place_differences(ByteSpan old_block, const ClassIndex& index, const XrParts& parts,
                                  const Planes& planes, std::size_t groups,
                                  const std::uint32_t* ones, const Bits* HWY_RESTRICT from,
                                  NextBlock&, Scratch& scratch, Bits* HWY_RESTRICT to) {
  auto* const ranks = scratch.take<std::uint32_t>(kBlockElements + kSlack);
  auto* const bitmap = scratch.take<std::uint64_t>(kGroups + 2);
  auto* const changed = scratch.take<std::uint64_t>(kGroups);
  std::memset(changed, 0, groups * sizeof(std::uint64_t));
  ClassOrder order{parts.changed, {}};
  std::uint64_t lows_at = parts.lows_at;
  for (unsigned c = 0; c < kClasses; ++c) {
    if (!read_bitmap(parts, c, planes, lows_at, ones, index.total[c], ranks, bitmap)) return false;
    order.in_half[c] = count_first(bitmap, index.before[c][groups / 2]);
    deposit_ranks(index, c, groups, bitmap, changed);
    ones += parts.listed[c];
    lows_at += std::uint64_t{parts.listed[c]} * parts.low_bits[c];
  }
  number_changes<kKind>(old_block, parts.ebase, changed, groups, order, scratch,
                        [&](std::size_t position, std::uint32_t number)
                            HWY_ATTR { to[position] = from[number]; });
  return true;
}

#endif

/// Decodes a block with many changes.
template <Kind kKind>
HWY_INLINE bool decode_dense(const ClassIndex& index, const XrParts& parts, const Planes& planes,
                             ByteSpan old_block, const std::uint32_t* ones, NextBlock& next,
                             std::span<std::byte> new_block, Scratch& scratch,
                             std::vector<std::byte>* log) {
  using Element = ElementOf<kKind>;
  using Bits = typename Element::Bits;
  const std::uint32_t* const exception_ones = ones + parts.listed_count;
  const std::uint32_t* const direct_ones = exception_ones + parts.exception_count;
  auto* const exceptions = scratch.take<std::uint32_t>(parts.exception_count + kSlack);
  if (!read_numbers(exception_ones, parts.exception_count, planes.rest, parts.exception_lows_at,
                    parts.exception_low_bits, parts.change_count - parts.direct_count,
                    exceptions)) {
    return false;
  }
  DenseDifferences<Element> differences(parts, planes.rest, scratch);
  if (!differences.read_direct(direct_ones)) return false;
  differences.fill_units();
  if (!differences.read_exceptions(exceptions, direct_ones + parts.direct_count) ||
      !differences.at_end()) {
    return false;
  }
  const std::size_t groups = (old_block.size() / sizeof(Bits) + 8 * kGroup - 1) / (8 * kGroup) * 8;
  auto* const placed = scratch.take<Bits>(groups * kGroup);
  std::memset(placed, 0, groups * kGroup * sizeof(Bits));
  if (!place_differences<kKind>(old_block, index, parts, planes, groups, ones, differences.data(),
                                next, scratch, placed)) {
    return false;
  }
  move_all<Element>(old_block, placed, new_block);
  if (log != nullptr) append_log_diff(*log, placed, old_block.size() / sizeof(Bits));
  ++scratch.dense_blocks();
  return true;
}

#endif

template <Kind kKind, typename Element>
HWY_INLINE bool decode_ranks(ByteSpan old_block, unsigned ebase, ByteSpan coded,
                             std::span<std::byte> new_block, Scratch& scratch,
                             std::vector<std::byte>* log) {
  constexpr std::size_t kGroupBytes = kGroup * width_bytes(kKind);
  ClassIndex& index = *scratch.take<ClassIndex>(1);
  NextBlock next(old_block, old_block.size() == block_bytes(kKind));
  build_class_index<kKind>(
      old_block, ebase, index,
      [&](std::size_t group) HWY_ATTR {
        for (std::size_t at = 0; at < kGroupBytes; at += kLine) {
          fetch_to_read(address_of(old_block) + group * kGroupBytes + at + kFetchAhead);
          fetch_to_write(new_block.data() + group * kGroupBytes + at);
        }
      },
      [&](std::size_t, unsigned) HWY_ATTR {
        next.fetch_line();
        next.fetch_line();
      });
  const std::optional<XrParts> parts = cut_xr(coded, index.total);
  if (!parts) return false;

  const Planes planes{copy_with_slack(parts->unary, scratch),
                      copy_with_slack(parts->rest, scratch)};
  const std::uint32_t codes =
      parts->listed_count + parts->direct_count + 2 * parts->exception_count;
  const std::uint32_t* const ones = find_ones(planes.unary, parts->unary.size(), codes, scratch);
#if WEIGHTFS_DENSE_TARGET
  if (parts->change_count >= kDenseChanges) {
    return decode_dense<kKind>(index, *parts, planes, old_block, ones, next, new_block, scratch,
                               log);
  }
#endif
  const std::size_t groups = (old_block.size() + kGroupBytes - 1) / kGroupBytes;
  const std::uint16_t* const positions =
      find_positions(index, *parts, planes, groups, ones, next, scratch);
  if (positions == nullptr) return false;
  const std::uint32_t* const exception_ones = ones + parts->listed_count;
  auto* const exceptions = scratch.take<std::uint32_t>(parts->exception_count + kSlack);
  if (!read_numbers(exception_ones, parts->exception_count, planes.rest, parts->exception_lows_at,
                    parts->exception_low_bits, parts->change_count - parts->direct_count,
                    exceptions)) {
    return false;
  }

  copy_block(old_block, new_block);
  Mover<Element> mover(*parts, planes, positions, new_block);
  mover.move_units();
  using Bits = typename Element::Bits;
  Bits* const differences = log != nullptr ? scratch.take<Bits>(parts->change_count) : nullptr;
  if (log != nullptr) mover.note_units(differences);
  const std::uint32_t* const direct_ones = exception_ones + parts->exception_count;
  const bool is_good = mover.move_direct(direct_ones) &&
                       mover.move_exceptions(exceptions, direct_ones + parts->direct_count) &&
                       mover.at_end();
  if (is_good && log != nullptr) append_log_list(*log, positions, differences, parts->change_count);
  return is_good;
}

HWY_INLINE bool decode_ranks(Kind kind, ByteSpan old_block, ByteSpan coded,
                             std::span<std::byte> new_block, Scratch& scratch,
                             std::vector<std::byte>* log) {
  const std::optional<unsigned> ebase = ebase_of(coded);
  if (!ebase) return false;
  return with_kind(kind, [&]<Kind kKind>() HWY_ATTR {
    return decode_ranks<kKind, ElementOf<kKind>>(old_block, *ebase, coded, new_block, scratch, log);
  });
}

/// Whether the block is one that is decoded here.
bool has_ranks(ByteSpan coded, std::size_t block_size) {
  const Mode mode = coded.empty() ? Mode::same : static_cast<Mode>(coded.front());
  return (mode == Mode::xr || mode == Mode::xs) && coded.size() <= 1 + block_size;
}

bool decode_block(Kind kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                  Scratch& scratch) noexcept {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  if (!has_ranks(coded, new_block.size())) {
    return scalar::decode_block(kind, old_block, coded, new_block, scratch);
  }
  scratch.reset();
  return decode_ranks(kind, old_block, coded, new_block, scratch, nullptr);
}

bool decode_logged(Kind kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                   Scratch& scratch, std::vector<std::byte>& log) {
  if (!has_ranks(coded, new_block.size())) {
    return scalar::decode_logged(kind, old_block, coded, new_block, scratch, log);
  }
  scratch.reset();
  return decode_ranks(kind, old_block, coded, new_block, scratch, &log);
}

decltype(Variant::decode_block) decoder() { return decode_block; }
decltype(Variant::decode_logged) logging_decoder() { return decode_logged; }

#endif  // HWY_SCALAR

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace weightfs::kernels::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weightfs::kernels::simd {
HWY_EXPORT(decoder);
HWY_EXPORT(logging_decoder);

decltype(Variant::decode_block) decode_block() noexcept { return HWY_DYNAMIC_DISPATCH(decoder)(); }
decltype(Variant::decode_logged) decode_logged() noexcept {
  return HWY_DYNAMIC_DISPATCH(logging_decoder)();
}

}  // namespace weightfs::kernels::simd
#endif
