// VersionPair: two versions and the change from one to the other.
//
// Threads: a value.
#pragma once

#include <compare>
#include <cstdint>
#include <tuple>

namespace weightfs {

/// The two ends of a change; `from` may be the later version.
struct VersionPair {
  std::uint64_t from = 0;
  std::uint64_t to = 0;

  /// From a version to the next one.
  [[nodiscard]] constexpr bool is_step() const noexcept { return from + 1 == to; }

  bool operator==(const VersionPair&) const = default;
  /// By the version they lead to.
  auto operator<=>(const VersionPair& other) const noexcept {
    return std::tie(to, from) <=> std::tie(other.to, other.from);
  }
};

/// The change that led to a version.  Requires: it is not the first one.
constexpr VersionPair step_to(std::uint64_t version) noexcept { return {version - 1, version}; }

}  // namespace weightfs
