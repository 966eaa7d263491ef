// Bytes: little helpers for spans of bytes: little- and big-endian integers, hex, views of text.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace weightfs {

using Bytes = std::vector<std::byte>;

inline std::span<const std::byte> as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads or writes an unsigned integer, little-endian.  Requires: at least sizeof(T) bytes.
template <typename T>
T load_le(const std::byte* from) noexcept {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); i++) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(from[i]) << (8 * i)));
  }
  return value;
}
template <typename T>
void append_le(std::string& to, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (std::size_t i = 0; i < sizeof(T); i++) {
    to.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  }
}

/// Big-endian, so that the order of keys is the order of numbers.
inline void append_be64(std::string& to, std::uint64_t value) {
  for (int i = 7; i >= 0; i--) to.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
}
inline void append_be32(std::string& to, std::uint32_t value) {
  for (int i = 3; i >= 0; i--) to.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
}
std::uint64_t load_be(std::string_view from) noexcept;  // all of `from`, at most 8 bytes

/// Lower-case hex.
std::string to_hex(std::span<const std::byte> bytes);

/// Reads lower-case hex of exactly out.size() bytes.  Returns: false if it is anything else.
[[nodiscard]] bool from_hex(std::string_view hex, std::span<std::byte> out) noexcept;

/// "1.2 GiB", "17 B": for people.
std::string human_bytes(std::uint64_t bytes);

/// "1 version", "2 versions".
std::string count_text(std::uint64_t count, std::string_view one);

}  // namespace weightfs
