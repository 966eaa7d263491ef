// Controls: the control characters of UTF-8 text, which terminals obey.
//
// Threads: a pure function.
#pragma once

#include <cstddef>
#include <string_view>

namespace weightfs {

/// The bytes of the control character that `text` begins with; 0 if it begins with another.  Those
/// behind ASCII too, U+0080 to U+009F: U+009B is ESC [ in one character.
/// Requires: `text` is not empty.
inline std::size_t control_size(std::string_view text) noexcept {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x20 || first == 0x7F) return 1;
  if (first != 0xC2 || text.size() < 2) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  return second >= 0x80 && second <= 0x9F ? 2 : 0;
}

}  // namespace weightfs
