#include "fs/report/bar_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace weightfs::fs {
namespace {

struct BarStyle {
  std::string_view whole;
  std::array<std::string_view, 7> parts;  // of a column, ascending; fewer: the rest is empty
  std::size_t parts_count;
};

constexpr BarStyle kBlocks{
    "\u2588", {"\u258F", "\u258E", "\u258D", "\u258C", "\u258B", "\u258A", "\u2589"}, 7};
constexpr BarStyle kAscii{"#", {"-"}, 1};

}  // namespace

bool shows_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale(value);
    std::ranges::transform(locale, locale.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return locale.find("utf-8") != locale.npos || locale.find("utf8") != locale.npos;
  }
  return false;
}

std::string bar_text(double share, std::size_t columns, bool is_utf8) {
  const BarStyle& style = is_utf8 ? kBlocks : kAscii;
  if (columns == 0) return {};
  std::string text;
  if (share > 1) {
    for (std::size_t i = 0; i + 1 < columns; i++) text += style.whole;
    return text + "+";
  }
  const std::size_t steps = style.parts_count + 1;  // of a column
  const double wanted = std::max(share, 0.0) * static_cast<double>(columns * steps);
  auto filled = static_cast<std::size_t>(std::lround(wanted));
  if (share > 0) filled = std::max<std::size_t>(filled, 1);
  const std::size_t whole = std::min(filled / steps, columns);
  const std::size_t part = whole == columns ? 0 : filled % steps;
  for (std::size_t i = 0; i < whole; i++) text += style.whole;
  if (part != 0) text += style.parts[part - 1];
  return text + std::string(columns - whole - (part != 0 ? 1 : 0), ' ');
}

std::string cut_line(const std::string& line, std::size_t width) {
  std::size_t end = 0, characters = 0;
  for (; end < line.size(); end++) {
    if ((line[end] & 0xC0) != 0x80 && characters++ == width) break;
  }
  std::string text = line.substr(0, end);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

}  // namespace weightfs::fs
