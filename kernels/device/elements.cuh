// Elements: device access to the elements of each kind: the ordered map (kernels/block/ordered.hpp)
// and the position of the exponent.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block/block.hpp"
#include "kernels/block/ordered.hpp"

namespace weightfs::kernels::cuda {

/// Returns visit(Element<...>{}) with the element of this kind.
template <typename Visit>
__device__ auto with_device_element(Kind kind, Visit visit) {
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

/// The elements of a block in device memory.
struct BlockElements {
  std::uint8_t* bytes;  // aligned to kBlockAlignment
  std::uint32_t count;
  Kind kind;
  bool are_numbers = false;  // plain integers of the kind's width: sums of differences

  /// Bits of an element.
  [[nodiscard]] __device__ std::uint32_t width() const {
    return 8 * static_cast<std::uint32_t>(width_bytes(kind));
  }

  /// Returns visit(Element<...>{}) with the type of the elements.
  template <typename Visit>
  __device__ auto visit_type(Visit visit) const {
    if (!are_numbers) return with_device_element(kind, visit);
    switch (width()) {
      case 16:
        return visit(Element<std::uint16_t, false>{});
      case 32:
        return visit(Element<std::uint32_t, false>{});
      default:
        return visit(Element<std::uint8_t, false>{});
    }
  }

  /// Moves one element by a difference, taken modulo 2^width.
  __device__ void move(std::uint32_t position, std::uint32_t difference) const {
    visit_type([=, this](auto element) {
      using Type = decltype(element);
      auto* const at = reinterpret_cast<typename Type::Bits*>(bytes) + position;
      *at = Type::moved(*at, difference);
    });
  }
};

}  // namespace weightfs::kernels::cuda
