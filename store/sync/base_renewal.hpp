// Base renewal: when the base of a store with images in memory (ImageTable::base_version) is
// written anew.
//
// A base costs the disk a whole version, and each version since it costs a restart its delta.  So
// the base is renewed after kBaseVersions versions: 1/64 of the model, 0.016, is what the disk is
// written for each; or when the deltas since are as large as the model, which is when a restart
// would fetch more than a cold start: then the disk is written no more than was fetched.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

namespace weightfs {

inline constexpr std::uint64_t kBaseVersions = 64;

/// What a restart would have to add to the base.
struct SinceBase {
  std::uint64_t versions = 0;
  std::uint64_t delta_bytes = 0;
};

constexpr bool is_base_due(const SinceBase& since, std::uint64_t model_bytes) noexcept {
  return since.versions >= kBaseVersions ||
         (since.versions > 0 && since.delta_bytes >= model_bytes);
}

}  // namespace weightfs
