// Patches, vectorised.  Where every element has a difference (DIFF blocks and the sums of a fold),
// whole vectors are added, negated and searched for nonzero values, in groups of 64 elements.  The
// sums are in an array of the element's width, so that those of a block stay in L2:
//
//     EF    --read--> changes --add one by one--+
//     DIFF  --add vectors-----------------------+--> sums --not zero--> changes --> EF
//                                                     +---------------------------> DIFF
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/patch.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h includes this file once for each target, hence the order.
#include <hwy/highway.h>

#include <cassert>
#include <cstring>
#include <optional>
#include <type_traits>

#include "kernels/block/change_log.hpp"
#include "kernels/scalar/ef.hpp"
#include "kernels/scalar/patch_parts.hpp"
#include "kernels/simd/changes-inl.hpp"
#include "kernels/simd/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace weightfs::kernels::simd::HWY_NAMESPACE {
namespace {

/// The number of elements in whole vectors.
template <typename D>
constexpr std::size_t whole(D d, std::size_t elements) {
  return elements / hn::MaxLanes(d) * hn::MaxLanes(d);
}

/// A difference for each element of a block, modulo 2^width; padded with zeros to a whole group.
template <typename Bits>
class Sums {
 public:
  Sums(std::size_t elements, Scratch& scratch)
      : elements_(elements),
        groups_((elements + kGroupElements - 1) / kGroupElements),
        sums_(scratch.take<Bits>(groups_ * kGroupElements)) {
    std::memset(sums_, 0, groups_ * kGroupElements * sizeof(Bits));
  }

  HWY_INLINE void add(const Changes& changes) {
    for (std::size_t i = 0; i < changes.count; ++i) {
      Bits& sum = sums_[changes.position[i]];
      sum = static_cast<Bits>(sum + static_cast<Bits>(changes.difference[i]));
    }
  }

  /// Returns: false if a position is not one of the block.
  HWY_INLINE bool add_list(const std::byte* positions, const std::byte* differences,
                           std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = load<std::uint16_t>(positions + i * sizeof(std::uint16_t));
      if (at >= elements_) return false;
      sums_[at] = static_cast<Bits>(sums_[at] + load<Bits>(differences + i * sizeof(Bits)));
    }
    return true;
  }

  /// Sets each sum to combine(sum, difference), with the differences of a DIFF block.
  template <typename Combine>
  HWY_INLINE void combine(ByteSpan diff, Combine&& combine) {
    const hn::ScalableTag<Bits> d;
    const std::byte* const differences = diff.data() + kDiffHeaderBytes;
    std::size_t i = 0;
    for (; i < whole(d, elements_); i += hn::MaxLanes(d)) {
      const auto difference = load_bytes(d, differences + i * sizeof(Bits));
      hn::Store(combine(hn::Load(d, sums_ + i), difference), d, sums_ + i);
    }
    if (i == elements_) return;
    alignas(64) Bits last[hn::MaxLanes(d)] = {};
    std::memcpy(last, differences + i * sizeof(Bits), (elements_ - i) * sizeof(Bits));
    hn::Store(combine(hn::Load(d, sums_ + i), hn::Load(d, last)), d, sums_ + i);
  }

  /// Replaces `changes` with the sums that are not zero.
  HWY_INLINE void collect(Changes& changes) const {
    std::size_t count = 0;
    for (std::size_t group = 0; group < groups_; ++group) {
      const std::size_t first = group * kGroupElements;
      const std::uint64_t bits = not_zero(sums_ + first);
      if (bits == 0) continue;
      count += append_indices(bits, first, changes.position.data() + count);
    }
    for (std::size_t i = 0; i < count; ++i) {
      changes.difference[i] = static_cast<std::make_signed_t<Bits>>(sums_[changes.position[i]]);
    }
    changes.count = count;
    changes.exception_count =
        list_exceptions(changes.difference.data(), count, changes.exception.data());
  }

  /// Appends the canonical patch for the sums.
  void append_patch(Kind kind, Changes& changes, std::vector<std::byte>& patch) const {
    collect(changes);
    if (changes.count == 0) return;
    if (encode_ef(changes, elements_, ef_patch_bytes_max(kind, elements_), patch)) return;
    patch.push_back(static_cast<std::byte>(Mode::diff));
    const auto* const bytes = reinterpret_cast<const std::byte*>(sums_);
    patch.insert(patch.end(), bytes, bytes + elements_ * sizeof(Bits));
  }

 private:
  /// Bit i is set if sum i of a group is not zero.
  static HWY_INLINE std::uint64_t not_zero(const Bits* sums) {
    const hn::ScalableTag<Bits> d;
    constexpr std::size_t kLanes = hn::MaxLanes(d);
    std::uint64_t bits = 0;
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kGroupElements; i += kLanes) {
      bits |= bits_of(d, hn::Ne(hn::Load(d, sums + i), hn::Zero(d))) << i;
    }
    return bits;
  }

  std::size_t elements_;
  std::size_t groups_;
  Bits* sums_;
};

/// Moves each element of a block by its difference in a DIFF block.
template <typename Element>
HWY_INLINE void apply_diff(ByteSpan diff, std::span<std::byte> block) {
  using Bits = typename Element::Bits;
  const hn::ScalableTag<Bits> d;
  const std::byte* const differences = diff.data() + kDiffHeaderBytes;
  const std::size_t whole_bytes = whole(d, block.size() / sizeof(Bits)) * sizeof(Bits);
  std::size_t at = 0;
  for (; at < whole_bytes; at += hn::MaxLanes(d) * sizeof(Bits)) {
    const auto before = ordered<Element>(load_bytes(d, block.data() + at));
    const auto after = unordered<Element>(hn::Add(before, load_bytes(d, differences + at)));
    hn::StoreU(after, d, reinterpret_cast<Bits*>(block.data() + at));
  }
  for (; at < block.size(); at += sizeof(Bits)) {
    store(block.data() + at,
          Element::moved(load<Bits>(block.data() + at), load<Bits>(differences + at)));
  }
}

std::size_t make_patch(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                       std::vector<std::byte>& patch) {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  scratch.reset();
  Changes& changes = scratch.take_changes();
  with_element(kind, [&]<typename Element>(Element) HWY_ATTR {
    collect_changes<Element>(old_block, new_block, changes, [](std::size_t) {});
  });
  append_patch(kind, new_block.size() / width_bytes(kind), changes, patch);
  return changes.count;
}

bool apply_patch(Kind kind, ByteSpan patch, std::span<std::byte> block, Scratch&) noexcept {
  assert(block.size() % width_bytes(kind) == 0 && block.size() <= block_bytes(kind));
  const std::optional<Mode> mode = mode_of_patch(kind, block.size() / width_bytes(kind), patch);
  if (!mode) return false;
  if (*mode == Mode::same) return true;
  if (*mode == Mode::ef) return apply_ef(kind, patch, block);
  with_element(kind,
               [&]<typename Element>(Element) HWY_ATTR { apply_diff<Element>(patch, block); });
  return true;
}

/// Returns: false if the patch is malformed.
template <typename Bits>
HWY_INLINE bool add_patch(Kind kind, std::size_t elements, ByteSpan patch, Changes& changes,
                          Sums<Bits>& sums) {
  const std::optional<Mode> mode = mode_of_patch(kind, elements, patch);
  if (!mode) return false;
  if (*mode == Mode::diff) {
    sums.combine(patch,
                 [](auto sum, auto difference) HWY_ATTR { return hn::Add(sum, difference); });
  } else if (*mode == Mode::ef) {
    if (!read_patch(kind, elements, patch, changes)) return false;
    sums.add(changes);
  }
  return true;
}

template <typename Bits>
bool fold(Kind kind, std::size_t elements, std::span<const ByteSpan> patches, Scratch& scratch,
          std::vector<std::byte>& folded) {
  scratch.reset();
  Changes& changes = scratch.take_changes();
  Sums<Bits> sums(elements, scratch);
  for (const ByteSpan patch : patches) {
    if (!add_patch(kind, elements, patch, changes, sums)) return false;
  }
  sums.append_patch(kind, changes, folded);
  return true;
}

template <typename Bits>
bool sum_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch,
             std::vector<std::byte>& patch) {
  scratch.reset();
  Changes& changes = scratch.take_changes();
  Sums<Bits> sums(elements, scratch);
  bool is_inside = true;
  const bool is_good = visit_log<Bits>(
      log, [&](ByteSpan entry) HWY_ATTR { return add_patch(kind, elements, entry, changes, sums); },
      [&](const std::byte* positions, const std::byte* differences, std::size_t count)
          HWY_ATTR { is_inside &= sums.add_list(positions, differences, count); });
  if (!is_good || !is_inside) return false;
  sums.append_patch(kind, changes, patch);
  return true;
}

bool fold_patches(Kind kind, std::size_t elements, std::span<const ByteSpan> patches,
                  Scratch& scratch, std::vector<std::byte>& folded) {
  assert(elements <= kBlockElements);
  return with_element(kind, [&]<typename Element>(Element) HWY_ATTR {
    return fold<typename Element::Bits>(kind, elements, patches, scratch, folded);
  });
}

/// Negates modulo 2^width: -2^(width-1) is its own negation.
HWY_INLINE void negate(Kind kind, Changes& changes) {
  const std::uint32_t half = 1U << (8 * width_bytes(kind) - 1);
  const auto lowest = static_cast<std::int32_t>(0U - half);
  for (std::size_t i = 0; i < changes.count; ++i) {
    const std::int32_t difference = changes.difference[i];
    changes.difference[i] = difference == lowest ? lowest : -difference;
  }
}

template <typename Bits>
bool invert(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
            std::vector<std::byte>& inverse) {
  const std::optional<Mode> mode = mode_of_patch(kind, elements, patch);
  if (!mode) return false;
  scratch.reset();
  Changes& changes = scratch.take_changes();
  if (*mode == Mode::diff) {
    Sums<Bits> sums(elements, scratch);
    sums.combine(patch,
                 [](auto sum, auto difference) HWY_ATTR { return hn::Sub(sum, difference); });
    sums.append_patch(kind, changes, inverse);
    return true;
  }
  if (!read_patch(kind, elements, patch, changes)) return false;
  negate(kind, changes);
  append_patch(kind, elements, changes, inverse);
  return true;
}

bool invert_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                  std::vector<std::byte>& inverse) {
  assert(elements <= kBlockElements);
  return with_element(kind, [&]<typename Element>(Element) HWY_ATTR {
    return invert<typename Element::Bits>(kind, elements, patch, scratch, inverse);
  });
}

bool patch_of_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch,
                  std::vector<std::byte>& patch) {
  assert(elements <= kBlockElements);
  return with_element(kind, [&]<typename Element>(Element) HWY_ATTR {
    return sum_log<typename Element::Bits>(kind, elements, log, scratch, patch);
  });
}

// HWY_EXPORT's table does not accept noexcept functions, so it contains these.
decltype(Variant::make_patch) get_make_patch() { return make_patch; }
decltype(Variant::apply_patch) get_apply_patch() { return apply_patch; }
decltype(Variant::fold_patches) get_fold_patches() { return fold_patches; }
decltype(Variant::invert_patch) get_invert_patch() { return invert_patch; }
decltype(Variant::patch_of_log) get_patch_of_log() { return patch_of_log; }

}  // namespace
}  // namespace weightfs::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weightfs::kernels::simd {

HWY_EXPORT(get_make_patch);
HWY_EXPORT(get_apply_patch);
HWY_EXPORT(get_fold_patches);
HWY_EXPORT(get_invert_patch);
HWY_EXPORT(get_patch_of_log);

decltype(Variant::make_patch) make_patch() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_make_patch)();
}
decltype(Variant::apply_patch) apply_patch() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_apply_patch)();
}
decltype(Variant::fold_patches) fold_patches() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_fold_patches)();
}
decltype(Variant::invert_patch) invert_patch() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_invert_patch)();
}
decltype(Variant::patch_of_log) patch_of_log() noexcept {
  return HWY_DYNAMIC_DISPATCH(get_patch_of_log)();
}

}  // namespace weightfs::kernels::simd
#endif  // HWY_ONCE
