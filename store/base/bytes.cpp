#include "store/base/bytes.hpp"

#include <array>
#include <cstdio>

namespace weightfs {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

int hex_value(char digit) noexcept {
  const auto at = kHexDigits.find(digit);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

}  // namespace

std::uint64_t load_be(std::string_view from) noexcept {
  std::uint64_t value = 0;
  for (const char c : from) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte b : bytes) {
    text.push_back(kHexDigits[std::to_integer<std::size_t>(b >> 4)]);
    text.push_back(kHexDigits[std::to_integer<std::size_t>(b & std::byte{15})]);
  }
  return text;
}

bool from_hex(std::string_view hex, std::span<std::byte> out) noexcept {
  if (hex.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); i++) {
    const int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    unit++;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string count_text(std::uint64_t count, std::string_view one) {
  std::string text = std::to_string(count) + " ";
  text += one;
  return count == 1 ? text : text + "s";
}

}  // namespace weightfs
