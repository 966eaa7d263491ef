// Every function reads patches into differences and writes differences as the one canonical patch.
// The intermediate form is Changes, the list of nonzero differences; only fold keeps a sum for
// every element of the block.
#include <algorithm>
#include <cassert>
#include <optional>
#include <type_traits>

#include "kernels/block/change_log.hpp"
#include "kernels/block/ordered.hpp"
#include "kernels/scalar/ef.hpp"
#include "kernels/scalar/patch_parts.hpp"
#include "kernels/scalar/scalar.hpp"

namespace weightfs::kernels {
namespace {

/// The low bits of a difference, as a signed number of the element's width.
template <typename Bits>
std::int32_t signed_difference(std::uint32_t difference) noexcept {
  return static_cast<std::make_signed_t<Bits>>(static_cast<Bits>(difference));
}

/// Calls visit(position, difference) for every nonzero difference of a DIFF block.
template <typename Bits, typename Visit>
void visit_diff(ByteSpan patch, Visit&& visit) noexcept {
  const ByteSpan differences = patch.subspan(kDiffHeaderBytes);
  for (std::size_t i = 0; i < differences.size() / sizeof(Bits); ++i) {
    const Bits difference = load<Bits>(differences.data() + i * sizeof(Bits));
    if (difference != 0) visit(i, std::uint32_t{difference});
  }
}

void append_change(Changes& changes, std::size_t position, std::int32_t difference) noexcept {
  if (magnitude(difference) > 1) {
    changes.exception[changes.exception_count++] = static_cast<std::uint16_t>(changes.count);
  }
  changes.position[changes.count] = static_cast<std::uint16_t>(position);
  changes.difference[changes.count] = difference;
  ++changes.count;
}

void append_diff(Kind kind, std::size_t elements, const Changes& changes,
                 std::vector<std::byte>& patch) {
  const std::size_t begin = patch.size();
  patch.resize(begin + diff_bytes(kind, elements));
  patch[begin] = static_cast<std::byte>(Mode::diff);
  std::byte* const differences = patch.data() + begin + kDiffHeaderBytes;
  with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    for (std::size_t i = 0; i < changes.count; ++i) {
      store(differences + changes.position[i] * sizeof(Bits),
            static_cast<Bits>(changes.difference[i]));
    }
  });
}

/// Replaces `changes` with the sums, modulo 2^width, that are not zero.
void collect_sums(Kind kind, std::span<const std::uint32_t> sums, Changes& changes) noexcept {
  changes.count = 0;
  changes.exception_count = 0;
  with_element(kind, [&]<typename Element>(Element) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto sum = signed_difference<typename Element::Bits>(sums[i]);
      if (sum != 0) append_change(changes, i, sum);
    }
  });
}

}  // namespace

std::optional<Mode> mode_of_patch(Kind kind, std::size_t elements, ByteSpan patch) noexcept {
  if (patch.empty()) return Mode::same;
  if (patch.size() > diff_bytes(kind, elements)) return std::nullopt;
  const Mode mode = static_cast<Mode>(patch.front());
  const bool is_possible = mode == Mode::ef || (mode == Mode::same && patch.size() == 1) ||
                           (mode == Mode::diff && patch.size() == diff_bytes(kind, elements));
  return is_possible ? std::optional(mode) : std::nullopt;
}

void append_patch(Kind kind, std::size_t elements, const Changes& changes,
                  std::vector<std::byte>& patch) {
  if (changes.count == 0) return;
  if (encode_ef(changes, elements, ef_patch_bytes_max(kind, elements), patch)) return;
  append_diff(kind, elements, changes, patch);
}

bool read_patch(Kind kind, std::size_t elements, ByteSpan patch, Changes& changes) noexcept {
  const std::optional<Mode> mode = mode_of_patch(kind, elements, patch);
  if (!mode) return false;
  if (*mode == Mode::ef) return read_ef(kind, elements, patch, changes);
  changes.count = 0;
  changes.exception_count = 0;
  if (*mode == Mode::same) return true;
  with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    visit_diff<Bits>(patch, [&](std::size_t position, std::uint32_t difference) {
      append_change(changes, position, signed_difference<Bits>(difference));
    });
  });
  return true;
}

namespace scalar {

std::size_t make_patch(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                       std::vector<std::byte>& patch) {
  assert(old_block.size() == new_block.size() && new_block.size() <= block_bytes(kind));
  assert(new_block.size() % width_bytes(kind) == 0);
  scratch.reset();
  Changes& changes = scratch.take_changes();
  kernels::find_changes(kind, old_block, new_block, changes);
  append_patch(kind, new_block.size() / width_bytes(kind), changes, patch);
  return changes.count;
}

bool apply_patch(Kind kind, ByteSpan patch, std::span<std::byte> block, Scratch&) noexcept {
  assert(block.size() % width_bytes(kind) == 0 && block.size() <= block_bytes(kind));
  const std::optional<Mode> mode = mode_of_patch(kind, block.size() / width_bytes(kind), patch);
  if (!mode) return false;
  if (*mode == Mode::same) return true;
  if (*mode == Mode::ef) return apply_ef(kind, patch, block);
  with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    visit_diff<Bits>(patch, [&](std::size_t position, std::uint32_t difference) {
      std::byte* const at = block.data() + position * sizeof(Bits);
      store(at, Element::moved(load<Bits>(at), difference));
    });
  });
  return true;
}

bool fold_patches(Kind kind, std::size_t elements, std::span<const ByteSpan> patches,
                  Scratch& scratch, std::vector<std::byte>& folded) {
  assert(elements <= kBlockElements);
  scratch.reset();
  Changes& changes = scratch.take_changes();
  const std::span<std::uint32_t> sums(scratch.take<std::uint32_t>(elements), elements);
  std::fill(sums.begin(), sums.end(), 0U);
  for (const ByteSpan patch : patches) {
    if (!read_patch(kind, elements, patch, changes)) return false;
    for (std::size_t i = 0; i < changes.count; ++i) {
      sums[changes.position[i]] += static_cast<std::uint32_t>(changes.difference[i]);
    }
  }
  collect_sums(kind, sums, changes);
  append_patch(kind, elements, changes, folded);
  return true;
}

bool invert_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                  std::vector<std::byte>& inverse) {
  assert(elements <= kBlockElements);
  scratch.reset();
  Changes& changes = scratch.take_changes();
  if (!read_patch(kind, elements, patch, changes)) return false;
  with_element(kind, [&]<typename Element>(Element) {
    for (std::size_t i = 0; i < changes.count; ++i) {  // -2^(width-1) is its own negation
      changes.difference[i] = signed_difference<typename Element::Bits>(
          0U - static_cast<std::uint32_t>(changes.difference[i]));
    }
  });
  append_patch(kind, elements, changes, inverse);
  return true;
}

bool patch_of_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch,
                  std::vector<std::byte>& patch) {
  assert(elements <= kBlockElements);
  scratch.reset();
  Changes& changes = scratch.take_changes();
  const std::span<std::uint32_t> sums(scratch.take<std::uint32_t>(elements), elements);
  std::fill(sums.begin(), sums.end(), 0U);
  const auto add_patch = [&](ByteSpan entry) {
    if (!read_patch(kind, elements, entry, changes)) return false;
    for (std::size_t i = 0; i < changes.count; ++i) {
      sums[changes.position[i]] += static_cast<std::uint32_t>(changes.difference[i]);
    }
    return true;
  };
  bool is_inside = true;
  const bool is_good = with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    return visit_log<Bits>(
        log, add_patch,
        [&](const std::byte* positions, const std::byte* differences, std::size_t count) {
          for (std::size_t i = 0; i < count; ++i) {
            const std::size_t at = load<std::uint16_t>(positions + i * sizeof(std::uint16_t));
            is_inside = is_inside && at < elements;
            if (is_inside) sums[at] += load<Bits>(differences + i * sizeof(Bits));
          }
        });
  });
  if (!is_good || !is_inside) return false;
  collect_sums(kind, sums, changes);
  append_patch(kind, elements, changes, patch);
  return true;
}

}  // namespace scalar

}  // namespace weightfs::kernels
