#include "fs/base/parse_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view expected) {
  throw Error(ErrorCode::invalid, fmt::format("'{}' is not {}", text, expected));
}

/// Reads a number from the front of `text`.  Returns: where the rest begins; nullptr if there is no
/// number.
template <typename Number, typename... Format>
const char* read_front(std::string_view text, Number& number, Format... format) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number, format...);
  return result.ec == std::errc{} ? result.ptr : nullptr;
}

template <typename Number, typename... Format>
bool read_whole(std::string_view text, Number& number, Format... format) {
  return !text.empty() && read_front(text, number, format...) == text.data() + text.size();
}

/// Bytes in one unit; 0 for an unknown one.
std::uint64_t unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "B") return 1;
  const std::size_t exponent = std::string_view("KMGTP").find(unit.front());
  if (exponent == std::string_view::npos) return 0;
  const std::string_view suffix = unit.substr(1);
  if (suffix != "" && suffix != "B" && suffix != "iB") return 0;
  std::uint64_t bytes = 1;
  for (std::size_t i = 0; i <= exponent; i++) bytes *= suffix == "B" ? 1000 : 1024;
  return bytes;
}

}  // namespace

std::uint64_t parse_number(std::string_view text, NumberRange range) {
  std::uint64_t number = 0;
  if (!read_whole(text, number) || number < range.least || number > range.most) {
    refuse(text, fmt::format("a number from {} to {}", range.least, range.most));
  }
  return number;
}

std::uint32_t parse_umask(std::string_view text) {
  std::uint32_t mask = 0;
  if (!read_whole(text, mask, 8) || mask > 0777) refuse(text, "an octal mask from 0 to 777");
  return mask;
}

std::uint32_t parse_mode(std::string_view text) {
  constexpr std::uint32_t kModes = 03777;
  std::uint32_t mode = 0;
  if (!read_whole(text, mode, 8) || mode > kModes) refuse(text, "an octal mode from 0 to 3777");
  return mode;
}

std::uint64_t parse_size(std::string_view text) {
  constexpr std::string_view kExpected = "a size such as 1073741824, 500M or 10GiB";
  std::uint64_t number = 0;
  const char* rest = read_front(text, number);
  if (rest == nullptr) refuse(text, kExpected);
  const auto digits = static_cast<std::size_t>(rest - text.data());
  const std::uint64_t unit = unit_bytes(text.substr(digits));
  if (unit == 0) refuse(text, kExpected);
  if (number > std::numeric_limits<std::uint64_t>::max() / unit) {
    refuse(text, "a size below 16 EiB");
  }
  return number * unit;
}

std::chrono::milliseconds parse_seconds(std::string_view text) {
  double seconds = 0;
  if (!read_whole(text, seconds, std::chars_format::fixed) || !(seconds >= 0.01) ||
      !(seconds <= 86400)) {
    refuse(text, "a number of seconds from 0.01 to 86400");
  }
  return std::chrono::milliseconds(std::lround(seconds * 1000));
}

std::string parse_word(std::string_view text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (text.empty() || text.front() == ' ' || text.back() == ' ' ||
      std::any_of(text.begin(), text.end(), is_control)) {
    refuse(text, "a valid name (not empty, no surrounding spaces, no control characters)");
  }
  return std::string(text);
}

bool parse_switch(std::string_view text) {
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  refuse(text, "true or false");
}

std::pair<std::string_view, std::string_view> parse_pair(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) refuse(text, "KEY=VALUE");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace weightfs::fs
