#include "fs/base/format_values.hpp"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace weightfs::fs {

std::string time_text(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  std::array<char, 64> text{};
  if (gmtime_r(&time, &parts) == nullptr) return std::to_string(seconds);
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%SZ", &parts);
  return text.data();
}

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  const double percent = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return part != 0 && percent < 0.01 ? "< 0.01 %" : fmt::format("{:.2f} %", percent);
}

}  // namespace weightfs::fs
