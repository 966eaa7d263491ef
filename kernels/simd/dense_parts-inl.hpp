// What the ways of encoding a dense block have in common: planes that are written word by word, and
// the changes of such a block.  dense_encode-inl.hpp explains the whole.
//
// Internal to kernels/, compiled once for each target of Highway.
#if defined(WEIGHTFS_SIMD_DENSE_PARTS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIGHTFS_SIMD_DENSE_PARTS_INL
#undef WEIGHTFS_SIMD_DENSE_PARTS_INL
#else
#define WEIGHTFS_SIMD_DENSE_PARTS_INL
#endif

#include <hwy/highway.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block/bits.hpp"
#include "kernels/block/scratch.hpp"
#include "kernels/simd/changes-inl.hpp"
#include "kernels/simd/class_index-inl.hpp"
#include "kernels/simd/simd.hpp"

#if WEIGHTFS_DENSE_TARGET
HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {

/// From here on this way is the faster one.
inline constexpr std::size_t kDenseChanges = 6144;

/// What the passes leave behind an array, in elements.
inline constexpr std::size_t kDenseSlack = 128;

/// Appends bit strings to a plane.  A step stores one whole word.
class PlanePacker {
 public:
  explicit PlanePacker(std::uint64_t* at) noexcept : begin_(at), at_(at) {}

  /// Appends the low `width` <= 64 bits of `bits`; those above are zero.
  HWY_INLINE void put(std::uint64_t bits, unsigned width) {
    word_ |= bits << filled_;
    *at_ = word_;
    const std::uint64_t spilled = (bits >> 1) >> (63 - filled_);
    filled_ += width;
    word_ = filled_ < 64 ? word_ : spilled;
    at_ += filled_ / 64;
    filled_ %= 64;
  }

  /// Appends `zeros` zero bits, then a one.
  HWY_INLINE void put_unary(std::uint32_t zeros) {
    for (; zeros >= 64; zeros -= 64) put(0, 64);
    put(std::uint64_t{1} << zeros, zeros + 1);
  }

  [[nodiscard]] std::uint64_t bits() const noexcept {
    return 64 * static_cast<std::uint64_t>(at_ - begin_) + filled_;
  }

  /// Appends the plane, padded to a byte, to `to`.
  std::byte* copy_to(std::byte* to) noexcept {
    *at_ = word_;
    const std::uint64_t bytes = plane_bytes(bits());
    std::memcpy(to, begin_, bytes);
    return to + bytes;
  }

 private:
  std::uint64_t* begin_;
  std::uint64_t* at_;
  std::uint64_t word_ = 0;
  unsigned filled_ = 0;
};

/// Which elements of a block change, and the difference of every element.
template <typename Element>
struct MarkedChanges {
  using Bits = typename Element::Bits;

  explicit MarkedChanges(Scratch& scratch) noexcept
      : changed(scratch.take<std::uint64_t>(kGroups)),
        difference(scratch.take<Bits>(kBlockElements)) {}

  std::uint64_t* changed;  // of each group
  Bits* difference;
  std::size_t count = 0;
};

/// The changes class by class.
template <typename Bits>
struct DenseChanges {
  explicit DenseChanges(Scratch& scratch) noexcept
      : ranks(scratch.take<std::uint64_t>(kGroups + 4 * kClasses)),
        difference(scratch.take<Bits>(kBlockElements + kDenseSlack)),
        numbers(scratch.take<std::uint16_t>(kBlockElements + 2 * kDenseSlack) + kDenseSlack),
        exceptions(scratch.take<std::uint16_t>(kBlockElements + 2 * kDenseSlack) + kDenseSlack),
        sizes(scratch.take<std::uint32_t>(kBlockElements + kDenseSlack)) {}

  ClassCounts changed{};
  std::array<std::uint64_t*, kClasses> bitmap{};  // of the ranks of each class, in `ranks`
  std::uint64_t* ranks;
  Bits* difference;
  std::uint16_t* numbers;     // a list
  std::uint16_t* exceptions;  // numbers of the changes by more than one unit
  std::uint32_t* sizes;       // |d| - 1 of each of these
  std::size_t exception_count = 0;
};

}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEIGHTFS_DENSE_TARGET

#endif  // per-target include guard
