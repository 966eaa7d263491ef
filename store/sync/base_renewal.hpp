// Base renewal: when the base of a store with images in memory (ImageTable::base_version) is
// written anew.
//
// A base costs the disk a whole version.  As long as patches lead from it to the newest version
// (store/sync/patch_recorder.hpp), a restart needs no other one: it is renewed when it would read
// more than half of the model in patches.
//
// Versions to which no patches lead cost a restart their deltas, from the bucket.  The newest one
// alone is left to the recorder.  Of more, the base is renewed when they are kBaseVersions (1/64 of
// the model, 0.016, is then what the disk is written for each), when their deltas are as large as
// the model, which is when a restart would fetch more than a cold start, or when the tensor table
// has changed, since no patches will ever lead over that.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

namespace weightfs {

inline constexpr std::uint64_t kBaseVersions = 64;

/// What a restart would have to add to the base.
struct SinceBase {
  std::uint64_t patch_bytes = 0;  // as far as patches lead
  // Of the versions behind:
  std::uint64_t versions = 0;
  std::uint64_t delta_bytes = 0;
};

constexpr bool is_base_due(const SinceBase& since, std::uint64_t model_bytes) noexcept {
  if (since.patch_bytes > model_bytes / 2 || since.versions >= kBaseVersions) return true;
  return since.versions > 1 && since.delta_bytes >= model_bytes;
}

}  // namespace weightfs
