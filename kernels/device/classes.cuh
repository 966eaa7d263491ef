// Classes: the elements of an old block by exponent class and rank.
//
// Counting reads the whole block, so it must take few instructions, about fifteen for 32 elements
// of 16 bits: a lane loads sixteen elements, clamps two exponents to classes at a time, stores the
// classes in shared memory as fields of four bits, and adds a one for each to twelve counts of five
// bits.  Eight lanes, 128 elements, then sum their counts as bytes, halving what each of them keeps
// at every step.  The counts become the number of members of each class before each group of 128.
// A member is found by two binary searches and a scan of its group.  The block is not read again,
// so it may change while members are looked up.
//
// Format: docs/FORMAT.md, "XR".  Its twin on the host: classify() in kernels/scalar/xr.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block/block.hpp"
#include "kernels/device/elements.cuh"
#include "kernels/device/threads.cuh"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels::cuda {

/// Sixteen numbers of 16 bits; number i is half i % 2 of word i / 2.
struct Sixteen {
  std::uint32_t pairs[8];
};

__device__ inline std::uint32_t in_both_halves(std::uint32_t x) { return x << 16 | x; }

/// The class of positions past the end.
inline constexpr std::uint32_t kNoClass = kClasses;

/// The exponents of the elements in 16 bytes, in pairs.
__device__ inline void set_exponents(const uint4& words, ExponentField exponent, std::uint8_t,
                                     std::uint32_t* pairs) {
  const std::uint32_t mask = exponent.mask * 0x01010101;
  const std::uint32_t four[4] = {words.x, words.y, words.z, words.w};
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t exponents = four[i] >> exponent.shift & mask;
    pairs[2 * i] = __byte_perm(exponents, 0, 0x4140);
    pairs[2 * i + 1] = __byte_perm(exponents, 0, 0x4342);
  }
}
__device__ inline void set_exponents(const uint4& words, ExponentField exponent, std::uint16_t,
                                     std::uint32_t* pairs) {
  const std::uint32_t mask = in_both_halves(exponent.mask);
  pairs[0] = words.x >> exponent.shift & mask;
  pairs[1] = words.y >> exponent.shift & mask;
  pairs[2] = words.z >> exponent.shift & mask;
  pairs[3] = words.w >> exponent.shift & mask;
}
__device__ inline void set_exponents(const uint4& words, ExponentField exponent, std::uint32_t,
                                     std::uint32_t* pairs) {
  const std::uint32_t mask = in_both_halves(exponent.mask);
  pairs[0] = __byte_perm(words.x >> exponent.shift, words.y >> exponent.shift, 0x5410) & mask;
  pairs[1] = __byte_perm(words.z >> exponent.shift, words.w >> exponent.shift, 0x5410) & mask;
}

/// The classes of the elements of an old block.
template <typename Bits>
class Classes {
 public:
  /// Requires: the elements are aligned to 16 bytes.
  __device__ Classes(const Bits* elements, std::uint32_t count, ExponentField exponent,
                     std::uint32_t ebase)
      : elements_(elements),
        count_(count),
        exponent_(exponent),
        minus_ebase_(in_both_halves((0U - ebase) & 0xFFFF)) {}

  [[nodiscard]] __device__ std::uint32_t count() const { return count_; }

  /// The classes of elements first .. first + 15; positions past the end have kNoClass.
  ///
  /// Requires: first is a multiple of 16.
  [[nodiscard]] __device__ Sixteen sixteen(std::uint32_t first) const {
    Sixteen result{};
    if (first + 16 <= count_) {
      constexpr std::uint32_t kLoads = sizeof(Bits);
      uint4 loaded[kLoads];
      for (std::uint32_t i = 0; i < kLoads; ++i) {
        loaded[i] = reinterpret_cast<const uint4*>(elements_ + first)[i];
      }
      for (std::uint32_t i = 0; i < kLoads; ++i) {
        set_exponents(loaded[i], exponent_, Bits{}, &result.pairs[8 / kLoads * i]);
      }
      for (std::uint32_t& pair : result.pairs) pair = clamp(pair);
      return result;
    }
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::uint32_t cls = first + i < count_ ? of(first + i) : kNoClass;
      result.pairs[i / 2] |= cls << (16 * (i % 2));
    }
    return result;
  }

  /// The class of one element.
  [[nodiscard]] __device__ std::uint32_t of(std::uint32_t i) const {
    return clamp(static_cast<std::uint32_t>(elements_[i]) >> exponent_.shift & exponent_.mask) &
           0xFFFF;
  }

 private:
  [[nodiscard]] __device__ std::uint32_t clamp(std::uint32_t exponents) const {
    return __viaddmin_s16x2_relu(exponents, minus_ebase_, in_both_halves(kClasses - 1));
  }

  const Bits* elements_;
  std::uint32_t count_;
  ExponentField exponent_;
  std::uint32_t minus_ebase_;  // in both halves
};

/// Finds the members of each class.  In shared memory.
class ClassIndex {
 public:
  /// Classifies and counts.  Called by the whole block; complete on return.
  template <typename Bits>
  __device__ void build(const Classes<Bits>& classes) {
    const std::uint32_t sections = divide_up(classes.count(), kSectionElements);
    for (std::uint32_t tile = warp(); tile < sections * kSectionElements / kTileElements;
         tile += kWarps) {
      count_tile(classes, tile);
    }
    __syncthreads();
    if (threadIdx.x < kSections * kClasses) {
      sum_section(threadIdx.x / kClasses, threadIdx.x % kClasses, sections);
    }
    __syncthreads();
    if (threadIdx.x < kClasses) sum_class(threadIdx.x);
    __syncthreads();
  }

  /// The number of members of the class.
  [[nodiscard]] __device__ std::uint32_t total(std::uint32_t cls) const {
    return before_section_[cls][kSections];
  }

  /// The class of the element at a position.
  [[nodiscard]] __device__ std::uint32_t class_at(std::uint32_t position) const {
    return eights_[position / 8] >> (4 * (position % 8)) & 0xF;
  }

  /// The position of the member with this rank.
  ///
  /// Requires: rank < total(cls).
  [[nodiscard]] __device__ std::uint32_t select(std::uint32_t cls, std::uint32_t rank) const {
    const std::uint32_t section = find_group(before_section_[cls], 1, kSections, rank);
    rank -= before_section_[cls][section];
    const std::uint32_t group =
        find_group(&before_group_[section][cls], kClasses, kSectionGroups, rank);
    rank -= before_group_[section][group * kClasses + cls];
    std::uint32_t eight = (section * kSectionGroups + group) * kGroupEights;
    for (std::uint32_t i = 1; i < kGroupEights; ++i) {
      const std::uint32_t ones = count_ones(members(eight, cls));
      if (rank < ones) break;
      rank -= ones;
      ++eight;
    }
    return 8 * eight + select_bit(members(eight, cls), rank) / 4;
  }

  /// The number of elements of the class before `position`.
  [[nodiscard]] __device__ std::uint32_t rank(std::uint32_t cls, std::uint32_t position) const {
    const std::uint32_t group = position / kGroupElements;
    std::uint32_t rank =
        before_section_[cls][group / kSectionGroups] +
        before_group_[group / kSectionGroups][group % kSectionGroups * kClasses + cls];
    std::uint32_t eight = group * kGroupEights;
    for (; eight < position / 8; ++eight) rank += count_ones(members(eight, cls));
    return rank + count_ones(members(eight, cls) & low_mask(4 * (position % 8)));
  }

 private:
  static constexpr std::uint32_t kGroupElements = 128;
  static constexpr std::uint32_t kGroupEights = kGroupElements / 8;
  static constexpr std::uint32_t kSectionGroups = 32;
  static constexpr std::uint32_t kSectionElements = kSectionGroups * kGroupElements;
  static constexpr std::uint32_t kSections = kBlockElements / kSectionElements;
  static constexpr std::uint32_t kTileElements = 32 * 16;  // that a warp processes at a time
  static_assert(kSections * kClasses <= kThreads && kClasses == 12);

  /// Bit 4i is set for each element i of these eight that is in the class.
  [[nodiscard]] __device__ std::uint32_t members(std::uint32_t eight, std::uint32_t cls) const {
    const std::uint32_t difference = eights_[eight] ^ cls * 0x11111111;
    const std::uint32_t halves = difference | difference >> 1;
    return ~(halves | halves >> 2) & 0x11111111;
  }

  /// Classifies a tile and writes the counts of its four groups.  Called by the whole warp.
  template <typename Bits>
  __device__ void count_tile(const Classes<Bits>& classes, std::uint32_t tile) {
    const Sixteen each = classes.sixteen(tile * kTileElements + 16 * lane());
    std::uint64_t counts = 0;  // of the lane's elements: five bits per class
    std::uint32_t fields[2] = {0, 0};
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t pair = each.pairs[i];
      fields[i / 4] |= ((pair | pair >> 12) & 0xFF) << (8 * (i % 4));
      const std::uint32_t shifts = 5 * pair;
      counts += std::uint64_t{1} << (shifts & 0x3F);
      counts += std::uint64_t{1} << (shifts >> 16);
    }
    const std::uint32_t eight = 2 * (32 * tile + lane());
    eights_[eight] = fields[0];
    eights_[eight + 1] = fields[1];
    const std::uint32_t own = sum_of_group(counts);
    // The lane has the counts of classes 4w .. 4w + 3, as every fourth lane does; each writes two.
    const std::uint32_t cls = lane() % 4 * 4 + lane() / 4 % 2 * 2;
    if (cls >= kClasses) return;
    const std::uint32_t group = eight / kGroupEights;
    std::uint16_t* const counted =
        &before_group_[group / kSectionGroups][group % kSectionGroups * kClasses + cls];
    counted[0] = static_cast<std::uint16_t>(own >> (cls % 4 * 8) & 0xFF);
    counted[1] = static_cast<std::uint16_t>(own >> (cls % 4 * 8 + 8) & 0xFF);
  }

  /// The sum over the lanes of a group: one byte each for classes 4w .. 4w + 3, w = lane() % 4.
  /// Called by the whole warp.
  [[nodiscard]] __device__ static std::uint32_t sum_of_group(std::uint64_t counts) {
    const auto spread = [](std::uint32_t fields) {  // four fields of five bits
      return (fields & 0x1F) | (fields << 3 & 0x1F00) | (fields << 6 & 0x1F0000) |
             (fields << 9 & 0x1F000000);
    };
    const std::uint32_t words[3] = {spread(static_cast<std::uint32_t>(counts)),
                                    spread(static_cast<std::uint32_t>(counts >> 20)),
                                    spread(static_cast<std::uint32_t>(counts >> 40))};
    const bool upper = (lane() & 2) != 0;  // keeps words 2 and 3, the latter of which is always
                                           // zero
    const std::uint32_t other_even = __shfl_xor_sync(kAllLanes, upper ? words[0] : words[2], 2);
    const std::uint32_t other_odd = __shfl_xor_sync(kAllLanes, upper ? words[1] : 0, 2);
    const std::uint32_t even = (upper ? words[2] : words[0]) + other_even;
    const std::uint32_t odd = upper ? 0 : words[1] + other_odd;
    const bool keeps_odd = (lane() & 1) != 0;
    std::uint32_t kept = keeps_odd ? odd : even;
    kept += __shfl_xor_sync(kAllLanes, keeps_odd ? even : odd, 1);
    return kept + __shfl_xor_sync(kAllLanes, kept, 4);
  }

  /// Turns the counts of one class in one section into prefix sums.
  __device__ void sum_section(std::uint32_t section, std::uint32_t cls, std::uint32_t sections) {
    std::uint32_t sum = 0;
    for (std::uint32_t group = 0; section < sections && group < kSectionGroups; ++group) {
      std::uint16_t& before = before_group_[section][group * kClasses + cls];
      const std::uint32_t own = before;
      before = static_cast<std::uint16_t>(sum);
      sum += own;
    }
    before_section_[cls][section] = sum;
  }

  __device__ void sum_class(std::uint32_t cls) {
    std::uint32_t sum = 0;
    for (std::uint32_t section = 0; section < kSections; ++section) {
      const std::uint32_t own = before_section_[cls][section];
      before_section_[cls][section] = sum;
      sum += own;
    }
    before_section_[cls][kSections] = sum;
  }

  std::uint32_t eights_[kBlockElements / 8];  // the classes, four bits each
  // By group and class, within the section.  The twelve extra entries put sum_section()'s reads of
  // neighbouring sections into different banks.
  std::uint16_t before_group_[kSections][(kSectionGroups + 1) * kClasses];
  std::uint32_t before_section_[kClasses][kSections + 1];
};

/// Builds the index of a block.  Called by the whole block.
__device__ inline void build_index(const BlockElements& elements, std::uint32_t ebase,
                                   ClassIndex& index) {
  const auto build = [&](auto bits) {
    using Bits = decltype(bits);
    index.build(Classes(reinterpret_cast<const Bits*>(elements.bytes), elements.count,
                        exponent_field(elements.kind), ebase));
  };
  switch (elements.width()) {
    case 16:
      return build(std::uint16_t{});
    case 32:
      return build(std::uint32_t{});
    default:
      return build(std::uint8_t{});
  }
}

}  // namespace weightfs::kernels::cuda
