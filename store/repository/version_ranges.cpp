#include "store/repository/version_ranges.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs {

void VersionRanges::add(Range range) {
  // Most come in ascending order.
  if (ranges_.empty() || ranges_.back().second + 1 < range.first) {
    ranges_.push_back(range);
    return;
  }
  // Of those that overlap or touch it, one is made.
  const auto first = ranges_.begin() + static_cast<std::ptrdiff_t>(first_at(range.first));
  auto end = first;
  for (; end != ranges_.end() && end->first <= range.second + 1; ++end) {
    range.first = std::min(range.first, end->first);
    range.second = std::max(range.second, end->second);
  }
  if (first == end) {
    ranges_.insert(first, range);
    return;
  }
  *first = range;
  ranges_.erase(first + 1, end);
}

void VersionRanges::add(const VersionRanges& other) {
  if (other.empty()) return;
  // In one pass over what lies behind the first of the others.
  const std::size_t stay = first_at(other.ranges_.front().first);
  std::vector<Range> sorted(ranges_.size() - stay + other.ranges_.size());
  std::merge(ranges_.begin() + static_cast<std::ptrdiff_t>(stay), ranges_.end(),
             other.ranges_.begin(), other.ranges_.end(), sorted.begin());
  ranges_.resize(stay);
  for (const Range& range : sorted) add(range);
}

/// The index of the first range that does not end before `version` - 1.
std::size_t VersionRanges::first_at(std::uint64_t version) const noexcept {
  const auto first = std::ranges::lower_bound(ranges_, version, {},
                                              [](const Range& range) { return range.second + 1; });
  return static_cast<std::size_t>(first - ranges_.begin());
}

bool VersionRanges::overlaps(const VersionRanges& other) const noexcept {
  auto mine = ranges_.begin(), theirs = other.ranges_.begin();
  while (mine != ranges_.end() && theirs != other.ranges_.end()) {
    if (mine->second < theirs->first) {
      ++mine;
    } else if (theirs->second < mine->first) {
      ++theirs;
    } else {
      return true;
    }
  }
  return false;
}

VersionRanges VersionRanges::with(const VersionRanges& other) const {
  VersionRanges both = *this;
  both.add(other);
  return both;
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
