// VersionRanges: a set of version numbers, kept as ranges.
//
// Ranges ascend and neither overlap nor touch.  What ascends is added in constant time each.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weightfs {

class VersionRanges {
 public:
  using Range = std::pair<std::uint64_t, std::uint64_t>;  // first and last

  void add(std::uint64_t version) { add({version, version}); }
  void add(Range range);
  void add(const VersionRanges& other);

  /// The union.
  [[nodiscard]] VersionRanges with(const VersionRanges& other) const;
  [[nodiscard]] bool contains(std::uint64_t version) const noexcept;
  /// Whether a version is in both.
  [[nodiscard]] bool overlaps(const VersionRanges& other) const noexcept;
  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
  [[nodiscard]] std::uint64_t count() const noexcept;
  [[nodiscard]] const std::vector<Range>& ranges() const noexcept { return ranges_; }

  /// "1 to 63, 65", at most `most` ranges and "...".
  [[nodiscard]] std::string text(std::size_t most = 8) const;

  bool operator==(const VersionRanges&) const = default;

 private:
  [[nodiscard]] std::size_t first_at(std::uint64_t version) const noexcept;

  std::vector<Range> ranges_;
};

}  // namespace weightfs
