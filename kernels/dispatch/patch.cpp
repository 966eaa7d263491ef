#include "kernels/dispatch/patch.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "kernels/block/change_log.hpp"
#include "kernels/block/ordered.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "kernels/scalar/patch_parts.hpp"

namespace weightfs::kernels {
namespace {

/// Sums of differences by position, in memory that is written only where something changed.
template <typename Bits>
class SparseSums {
 public:
  SparseSums(std::size_t elements, Scratch& scratch)
      : words_((elements + kWordBits - 1) / kWordBits),
        is_changed_(scratch.take<std::uint64_t>(words_)),
        sums_(scratch.take<Bits>(elements)) {
    std::fill_n(is_changed_, words_, 0U);
  }

  void add(std::size_t at, Bits difference) noexcept {
    std::uint64_t& word = is_changed_[at / kWordBits];
    const std::uint64_t bit = std::uint64_t{1} << at % kWordBits;
    sums_[at] = static_cast<Bits>(((word & bit) != 0 ? sums_[at] : 0) + difference);
    word |= bit;
  }

  /// Replaces the list with the sums that are not zero.
  void collect(Changes& changes) const noexcept {
    changes.count = 0;
    changes.exception_count = 0;
    for (std::size_t i = 0; i < words_; ++i) {
      for (std::uint64_t word = is_changed_[i]; word != 0; word &= word - 1) {
        const std::size_t at = i * kWordBits + static_cast<std::size_t>(std::countr_zero(word));
        if (sums_[at] == 0) continue;
        changes.position[changes.count] = static_cast<std::uint16_t>(at);
        changes.difference[changes.count] = static_cast<std::make_signed_t<Bits>>(sums_[at]);
        ++changes.count;
      }
    }
  }

 private:
  static constexpr std::size_t kWordBits = 64;
  const std::size_t words_;
  std::uint64_t* const is_changed_;
  Bits* const sums_;
};

}  // namespace

std::size_t make_patch(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                       std::vector<std::byte>& patch) {
  return chosen_variant().make_patch(kind, old_block, new_block, scratch, patch);
}

bool apply_patch(Kind kind, ByteSpan patch, std::span<std::byte> block, Scratch& scratch) noexcept {
  return chosen_variant().apply_patch(kind, patch, block, scratch);
}

bool fold_patches(Kind kind, std::size_t elements, std::span<const ByteSpan> patches,
                  Scratch& scratch, std::vector<std::byte>& folded) {
  return chosen_variant().fold_patches(kind, elements, patches, scratch, folded);
}

bool invert_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                  std::vector<std::byte>& inverse) {
  return chosen_variant().invert_patch(kind, elements, patch, scratch, inverse);
}

bool summarize_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                     DiffSummary& summary) {
  scratch.reset();
  Changes& changes = scratch.take_changes();
  if (!read_patch(kind, elements, patch, changes)) return false;
  summary = {.changed = changes.count, .largest_ulp = 0};
  for (std::size_t i = 0; i < changes.count; ++i) {
    summary.largest_ulp =
        std::max<std::uint64_t>(summary.largest_ulp, magnitude(changes.difference[i]));
  }
  return true;
}

bool patch_of_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch,
                  std::vector<std::byte>& patch) {
  return chosen_variant().patch_of_log(kind, elements, log, scratch, patch);
}

const Changes* changes_of_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch) {
  assert(elements <= kBlockElements);
  scratch.reset();
  Changes& changes = scratch.take_changes();
  const bool is_good = with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    SparseSums<Bits> sums(elements, scratch);
    bool is_inside = true;
    const auto add_patch = [&](ByteSpan entry) {
      if (!read_patch(kind, elements, entry, changes)) return false;
      for (std::size_t i = 0; i < changes.count; ++i) {
        sums.add(changes.position[i], static_cast<Bits>(changes.difference[i]));
      }
      return true;
    };
    const auto add_list = [&](const std::byte* positions, const std::byte* differences,
                              std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = load<std::uint16_t>(positions + i * sizeof(std::uint16_t));
        is_inside = is_inside && at < elements;
        if (is_inside) sums.add(at, load<Bits>(differences + i * sizeof(Bits)));
      }
    };
    if (!visit_log<Bits>(log, add_patch, add_list) || !is_inside) return false;
    sums.collect(changes);
    return true;
  });
  return is_good ? &changes : nullptr;
}

}  // namespace weightfs::kernels
