#include "store/format/tensor.hpp"

#include <array>
#include <cstddef>

namespace weightfs {
namespace {

struct DtypeInfo {
  std::string_view name;
  unsigned bits;
  kernels::Kind kind;
};

using kernels::Kind;

/// In the order of the enumerators.
constexpr std::array<DtypeInfo, 22> kDtypes{{
    {"BOOL", 8, Kind::u8},         {"F4", 4, Kind::u8},           {"F6_E2M3", 6, Kind::u8},
    {"F6_E3M2", 6, Kind::u8},      {"U8", 8, Kind::u8},           {"I8", 8, Kind::u8},
    {"F8_E5M2", 8, Kind::f8_e5m2}, {"F8_E4M3", 8, Kind::f8_e4m3}, {"F8_E8M0", 8, Kind::u8},
    {"F8_E4M3FNUZ", 8, Kind::u8},  {"F8_E5M2FNUZ", 8, Kind::u8},  {"I16", 16, Kind::u8},
    {"U16", 16, Kind::u8},         {"F16", 16, Kind::f16},        {"BF16", 16, Kind::bf16},
    {"I32", 32, Kind::u8},         {"U32", 32, Kind::u8},         {"F32", 32, Kind::f32},
    {"C64", 64, Kind::u8},         {"F64", 64, Kind::u8},         {"I64", 64, Kind::u8},
    {"U64", 64, Kind::u8},
}};
static_assert(static_cast<std::size_t>(Dtype::u64) + 1 == kDtypes.size());

const DtypeInfo& info_of(Dtype dtype) noexcept { return kDtypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view to_string(Dtype dtype) noexcept { return info_of(dtype).name; }

std::optional<Dtype> find_dtype(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kDtypes.size(); i++) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

unsigned bits_of(Dtype dtype) noexcept { return info_of(dtype).bits; }

kernels::Kind kind_of(Dtype dtype) noexcept { return info_of(dtype).kind; }

std::optional<std::uint64_t> size_bytes_of(Dtype dtype,
                                           std::span<const std::uint64_t> shape) noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  if (__builtin_mul_overflow(product, std::uint64_t{bits_of(dtype)}, &product)) return std::nullopt;
  if (product % 8 != 0) return std::nullopt;
  return product / 8;
}

}  // namespace weightfs
