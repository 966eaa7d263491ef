// The offsets of the one bits of each byte, ascending, eight to an entry: what bits are listed with
// where there is no compress.  Entries behind the last one are 0.  Internal to kernels/simd.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weightfs::kernels::simd {

alignas(64) inline constexpr std::array<std::array<std::uint8_t, 8>, 256> kOnesOfByte = [] {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    std::size_t ones = 0;
    for (std::uint8_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) != 0) table[byte][ones++] = bit;
    }
  }
  return table;
}();

}  // namespace weightfs::kernels::simd
