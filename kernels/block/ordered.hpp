// Ordered: the integers in which changes are counted, and iteration over the elements of a block.
//
// The map is a bijection on the element's bits that preserves the order of the numbers, so
// neighbouring integers are one unit in the last place apart, and +0 and -0 are neighbours.
//
// Format: docs/FORMAT.md, "Blocks".
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "kernels/block/block.hpp"

namespace weightfs::kernels {

static_assert(std::endian::native == std::endian::little, "elements are read as they are stored");

/// Reads or writes one value; tensors need not be aligned.
template <typename Value>
Value load(const std::byte* from) noexcept {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <typename Value>
void store(std::byte* to, Value value) noexcept {
  std::memcpy(to, &value, sizeof value);
}

/// One element: the type of its bits, and whether they have a sign and an exponent.
template <typename BitsType, bool kIsFloat>
struct Element {
  using Bits = BitsType;
  static constexpr unsigned kWidth = 8 * sizeof(Bits);
  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (kWidth - 1));

  static constexpr Bits ordered(Bits x) noexcept {
    if constexpr (!kIsFloat) return x;
    return static_cast<Bits>(x ^ (all_if_signed(x) | kSign));
  }

  static constexpr Bits unordered(Bits x) noexcept {
    if constexpr (!kIsFloat) return x;
    return static_cast<Bits>(x ^ (all_if_signed(static_cast<Bits>(~x)) | kSign));
  }

  /// after - before modulo 2^kWidth, as a signed number.
  static constexpr std::int32_t difference(Bits before, Bits after) noexcept {
    const Bits bits = static_cast<Bits>(ordered(after) - ordered(before));
    return static_cast<std::make_signed_t<Bits>>(bits);
  }

  /// The inverse of difference(); takes the difference modulo 2^32.
  static constexpr Bits moved(Bits before, std::uint32_t difference) noexcept {
    return unordered(static_cast<Bits>(ordered(before) + difference));
  }

 private:
  /// All bits, or none.  Signs are random: half of the branches on them would be mispredicted.
  static constexpr Bits all_if_signed(Bits x) noexcept {
    return static_cast<Bits>(0U - (x >> (kWidth - 1)));
  }
};

/// The element of a kind known at compile time.
template <Kind kKind>
using ElementOf = Element<
    std::conditional_t<width_bytes(kKind) == 1, std::uint8_t,
                       std::conditional_t<width_bytes(kKind) == 2, std::uint16_t, std::uint32_t>>,
    kKind != Kind::u8>;

/// Calls visit(Element<...>{}) with the element of this kind.
template <typename Visit>
decltype(auto) with_element(Kind kind, Visit&& visit) {
  switch (kind) {
    case Kind::u8:
      break;
    case Kind::f8_e4m3:
    case Kind::f8_e5m2:
      return visit(Element<std::uint8_t, true>{});
    case Kind::bf16:
    case Kind::f16:
      return visit(Element<std::uint16_t, true>{});
    case Kind::f32:
      return visit(Element<std::uint32_t, true>{});
  }
  return visit(Element<std::uint8_t, false>{});
}

/// Calls visit(index, before, after) for every element that differs, in order, and for some that do
/// not: those in the same 8-byte word as one that does.  Visitors that count instead of branching
/// stay fast however dense the changes are.
///
/// Requires: the same size, a multiple of the element's width.
template <typename Bits, typename Visit>
void visit_differing_words(std::span<const std::byte> old_bytes,
                           std::span<const std::byte> new_bytes, Visit&& visit) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  constexpr std::size_t kStride = 4 * kWord;
  const std::byte* const before = old_bytes.data();
  const std::byte* const after = new_bytes.data();
  const std::size_t size = old_bytes.size();
  const auto differ = [&](std::size_t at) {
    return load<std::uint64_t>(before + at) ^ load<std::uint64_t>(after + at);
  };
  const auto visit_elements = [&](std::size_t at, std::size_t bytes) {
    for (const std::size_t end = at + bytes; at < end; at += sizeof(Bits)) {
      visit(at / sizeof(Bits), load<Bits>(before + at), load<Bits>(after + at));
    }
  };
  std::size_t at = 0;
  for (; at + kStride <= size; at += kStride) {
    if ((differ(at) | differ(at + kWord) | differ(at + 2 * kWord) | differ(at + 3 * kWord)) == 0) {
      continue;
    }
    for (std::size_t word = at; word < at + kStride; word += kWord) {
      if (differ(word) != 0) visit_elements(word, kWord);
    }
  }
  visit_elements(at, size - at);
}

}  // namespace weightfs::kernels
