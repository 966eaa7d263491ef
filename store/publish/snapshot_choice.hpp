// Snapshot choice: which versions get a snapshot without being told to, so that joining stays
// short.
//
//     by number        every version divisible by SnapshotPolicy::every
//     when it pays     a version divisible by 64, once the way from the last snapshot is long:
//                      the newest skip delta from it has more than a fifth of a snapshot's bytes,
//                      or, where no skip leads from it to one of the last 64 versions, all deltas
//                      since have as many bytes as a snapshot, or a manifest on the way is damaged
//
// Threads: pure functions, but for what they ask the History and the bucket.
#pragma once

#include <cstdint>

#include "store/base/context.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct SnapshotPolicy {
  std::uint64_t every = 0;  // 0: none by number
  /// false: only what all hosts know alike decides, the history; skip deltas do not.
  bool asks_bucket = true;
};

/// Whether version `version`, of `version_bytes`, should have one.  Asks the bucket once, for
/// versions divisible by 64 only; if that fails, the deltas decide.
/// Throws Error: cancelled, timed_out, unavailable; as History::get of the version before.
bool is_snapshot_due(History& history, std::uint64_t version, std::uint64_t version_bytes,
                     const SnapshotPolicy& policy, const Context& context);

}  // namespace weightfs
