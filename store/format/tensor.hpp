// Tensor: element types of safetensors, and how the codec sees them.
//
// Source: safetensors/src/tensor.rs, enum Dtype (0.7): BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2
// F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/block/block.hpp"

namespace weightfs {

enum class Dtype : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

/// The name in a safetensors header: "BF16".
std::string_view to_string(Dtype dtype) noexcept;

/// nullopt for a name that safetensors does not know.
std::optional<Dtype> find_dtype(std::string_view name) noexcept;

/// Bits of one element: 4, 6, 8, 16, 32 or 64.
unsigned bits_of(Dtype dtype) noexcept;

/// BF16, F16, F32, F8_E4M3 and F8_E5M2 have a kind of their own, all others are bytes.
kernels::Kind kind_of(Dtype dtype) noexcept;

/// Bytes of a tensor of this shape; nullopt if a product overflows 64 bits or the bits are not a
/// whole number of bytes.  An empty shape is a scalar.
///
/// Note: extents are multiplied in order, as the reference does: {0, 2^40, 2^40} is empty,
/// {2^40, 2^40, 0} overflows.
std::optional<std::uint64_t> size_bytes_of(Dtype dtype,
                                           std::span<const std::uint64_t> shape) noexcept;

}  // namespace weightfs
