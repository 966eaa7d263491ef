#include "store/repository/version_ranges.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs {

void VersionRanges::add(Range range) {
  // Of those that overlap or touch it, one is made.
  auto first = std::find_if(ranges_.begin(), ranges_.end(),
                            [&](const Range& one) { return one.second + 1 >= range.first; });
  auto end = first;
  for (; end != ranges_.end() && end->first <= range.second + 1; ++end) {
    range.first = std::min(range.first, end->first);
    range.second = std::max(range.second, end->second);
  }
  first = ranges_.erase(first, end);
  ranges_.insert(first, range);
}

void VersionRanges::add(const VersionRanges& other) {
  for (const Range& range : other.ranges_) add(range);
}

bool VersionRanges::contains(std::uint64_t version) const noexcept {
  const auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), version,
      [](std::uint64_t number, const Range& range) { return number < range.first; });
  return after != ranges_.begin() && std::prev(after)->second >= version;
}

std::uint64_t VersionRanges::count() const noexcept {
  std::uint64_t total = 0;
  for (const auto& [first, last] : ranges_) total += last - first + 1;
  return total;
}

std::string VersionRanges::text(std::size_t most) const {
  std::string text;
  for (std::size_t i = 0; i < ranges_.size(); i++) {
    if (i != 0) text += ", ";
    if (i == most) return text + "...";
    const auto& [first, last] = ranges_[i];
    text += first == last ? std::to_string(first) : fmt::format("{} to {}", first, last);
  }
  return text;
}

}  // namespace weightfs
