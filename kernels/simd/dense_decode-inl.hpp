// Decoding of blocks in which many elements change: the way of dense_encode-inl.hpp, backwards.
//
//     S, U, Q      --> the differences, class by class, several at a time
//     U, L         --> a bitmap of ranks for each class; where a gap has no low bits, it is in U
//     group by group, for each class:
//       members    --> which of them change, by a bit deposit from the bitmap; and the differences
//                      of the class, to their places: by an expand (AVX3_DL), or one at a time
//     old + differences --> new, without a copy before
//
// What differs between targets is in dense_decode512-inl.hpp and dense_decode256-inl.hpp, under the
// same names.
//
// Internal to kernels/, compiled once for each target of Highway; included by decode.cpp only.
#if defined(WEIGHTFS_SIMD_DENSE_DECODE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_DECODE_INL
#undef WEIGHTFS_SIMD_DENSE_DECODE_INL
#else
#define WEIGHTFS_SIMD_DENSE_DECODE_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "kernels/block/ordered.hpp"
#include "kernels/scalar/xr.hpp"
#include "kernels/simd/changes-inl.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/dense_decode256-inl.hpp"
#include "kernels/simd/dense_decode512-inl.hpp"
#include "kernels/simd/simd.hpp"

#if WEIGHTFS_DENSE_TARGET
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

/// The differences of a block's changes, in the order of their numbers.
template <typename Element>
class DenseDifferences {
 public:
  using Bits = typename Element::Bits;

  DenseDifferences(const XrParts& parts, const std::byte* rest, Scratch& scratch) noexcept
      : parts_(parts),
        rest_(rest),
        values_(parts, rest),
        all_(scratch.take<Bits>(parts.change_count + kSlackOfAll)) {}

  /// Unary parts of the codes end at ones[0], ...
  HWY_NOINLINE bool read_direct(const std::uint32_t* ones) {
    ValueReader<Element> values = values_;  // in registers
    bool is_good = true;
    std::uint32_t first = 0;
    for (unsigned c = 0; c < kClasses && c < parts_.z; ++c) {
      const unsigned order = direct_order(Element::kWidth, parts_.z, c);
      const std::uint32_t end = first + parts_.changed[c];
      for (std::uint32_t i = first; i < end; i += kLanesOfStep) {
        const auto lanes = first_lanes(end - i);
        const auto sizes = values.next(ones + i, lanes, order, is_good);
        if (!is_good || !store(i, lanes, sizes)) return false;
      }
      first = end;
    }
    values_ = values;
    return true;
  }

  /// Those of one unit, up or down.
  HWY_NOINLINE void fill_units() {
    for (std::uint32_t i = parts_.direct_count; i < parts_.change_count; i += kLanesOfStep) {
      (void)store(i, first_lanes(kLanesOfStep), all_units());  // possible of every kind
    }
  }

  HWY_NOINLINE bool read_exceptions(const std::uint32_t* numbers, const std::uint32_t* ones) {
    bool is_good = true;
    alignas(64) std::uint32_t sizes[kLanesOfStep];
    for (std::uint32_t i = 0; i < parts_.exception_count; i += kLanesOfStep) {
      const std::uint32_t left = parts_.exception_count - i;
      store_sizes(sizes, values_.next(ones + i, first_lanes(left), 0, is_good));
      if (!is_good) return false;
      for (std::uint32_t j = 0; j < std::min(left, kLanesOfStep); ++j) {
        const std::uint32_t number = parts_.direct_count + numbers[i + j];
        const bool down = is_negative(number);
        // Compared without the 1: a hostile 2^32 - 1 would become 0.
        is_good = is_good && sizes[j] < kHalf - 1 + std::uint32_t{down};
        all_[number] = static_cast<Bits>(negate_if(down, sizes[j] + 1));
      }
    }
    return is_good;
  }

  /// True if the values read so far fill Q.
  [[nodiscard]] bool at_end() const noexcept { return ends_at(parts_.rest, values_.offset()); }

  [[nodiscard]] const Bits* data() const noexcept { return all_; }

 private:
  static constexpr std::size_t kSlackOfAll = 64;
  static constexpr std::uint32_t kHalf = std::uint32_t{1} << (Element::kWidth - 1);

  HWY_INLINE bool is_negative(std::uint32_t number) const {
    const std::uint64_t at = parts_.signs_at + number;
    return (std::to_integer<unsigned>(rest_[at / 8]) >> at % 8 & 1) != 0;
  }

  template <typename Lanes, typename V>
  HWY_INLINE bool store(std::uint32_t i, Lanes lanes, V sizes) {
    return store_signed<Element>(rest_, parts_.signs_at + i, lanes, sizes, all_ + i);
  }

  const XrParts& parts_;
  const std::byte* rest_;
  ValueReader<Element> values_;
  Bits* all_;
};

/// Copies the bits [from, end) of a plane with slack to a bitmap, and zeros behind them to the end
/// of the word after them.
HWY_INLINE void copy_bits(const std::byte* plane, std::uint64_t from, std::uint64_t end,
                          std::uint64_t* to) {
  const std::uint64_t bits = end - from;
  const unsigned shift = from % 8;
  for (std::uint64_t at = 0; at < bits; at += 64) {
    const std::byte* const bytes = plane + (from + at) / 8;
    const std::uint64_t next = std::to_integer<std::uint64_t>(bytes[8]);
    to[at / 64] = load<std::uint64_t>(bytes) >> shift | next << 1 << (63 - shift);
  }
  if (bits % 64 != 0) to[bits / 64] &= (std::uint64_t{1} << bits % 64) - 1;
}

/// new = old moved by the differences of all elements.
template <typename Element>
HWY_NOINLINE void move_all(ByteSpan old_block, const typename Element::Bits* differences,
                           std::span<std::byte> new_block) {
  using Bits = typename Element::Bits;
  const hn::ScalableTag<Bits> d;
  constexpr std::size_t kStep = hn::MaxLanes(d);
  const std::size_t elements = old_block.size() / sizeof(Bits);
  std::size_t i = 0;
  for (; i + kStep <= elements; i += kStep) {
    const auto old_bits = load_bytes(d, old_block.data() + i * sizeof(Bits));
    const auto sum = hn::Add(ordered<Element>(old_bits), hn::Load(d, differences + i));
    hn::StoreU(unordered<Element>(sum), d,
               reinterpret_cast<Bits*>(new_block.data() + i * sizeof(Bits)));
  }
  for (; i < elements; ++i) {
    const std::size_t at = i * sizeof(Bits);
    store(new_block.data() + at, Element::moved(load<Bits>(old_block.data() + at), differences[i]));
  }
}

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEIGHTFS_DENSE_TARGET

#endif  // per-target include guard
