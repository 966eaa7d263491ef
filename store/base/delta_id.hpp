// DeltaId: names a change between two versions as a file (store/inspect/sparse_delta.hpp).
//
// Threads: a value.
#pragma once

#include <compare>
#include <cstdint>
#include <tuple>

#include "store/base/version_pair.hpp"

namespace weightfs {

struct DeltaId {
  /// Without the old values, as most readers want it.
  constexpr DeltaId(VersionPair pair, bool old = false) noexcept : versions(pair), with_old(old) {}

  constexpr DeltaId(std::uint64_t from, std::uint64_t to) noexcept : versions{from, to} {}

  VersionPair versions;
  bool with_old = false;  // it holds the old values beside the new ones

  bool operator==(const DeltaId&) const = default;
  /// By the version they lead to.
  auto operator<=>(const DeltaId& other) const noexcept {
    return std::tie(versions, with_old) <=> std::tie(other.versions, other.with_old);
  }
};

}  // namespace weightfs
