// Keep: which versions a bucket keeps, what they need, and what may therefore be retired.
//
//     kept      the user's wish: the newest, tagged ones, every 64th
//     needed    what a kept version is built from: a snapshot and the deltas after it
//     retired   every other delta and snapshot; and orphans, which no manifest names
//
// Threads: pure functions on values.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "store/retention/gc_log.hpp"
#include "store/retention/inventory.hpp"

namespace weightfs {

struct KeepPolicy {
  std::uint64_t newest = 100;             // so many of the newest versions; at least 1
  std::uint64_t every = 0;                // and all whose number it divides; 0: none
  std::vector<std::string> tags = {"*"};  // and all with a tag that one of these globs matches
};

/// Why a version is kept; `none`: it is not.
enum class KeepReason { none, newest, every, tag };

/// Whether a policy wants a version, whether or not it can still be built.
KeepReason reason_to_keep(const VersionFacts& version, std::uint64_t head,
                          const KeepPolicy& policy);

/// Which versions can be built, and what is there to build them from, by what the log retired.
class BuildableVersions {
 public:
  BuildableVersions(const std::vector<VersionFacts>& versions, const VersionRanges& no_deltas,
                    const VersionRanges& no_snapshots);

  [[nodiscard]] bool has_delta(std::uint64_t version) const;
  [[nodiscard]] bool has_snapshot(std::uint64_t version) const;
  [[nodiscard]] bool can_build(std::uint64_t version) const;
  [[nodiscard]] const VersionRanges& buildable() const noexcept { return buildable_; }

 private:
  const std::vector<VersionFacts>& versions_;  // owned by the caller
  const VersionRanges &no_deltas_, &no_snapshots_;
  VersionRanges buildable_;
};

/// Versions whose deltas and snapshots are needed.
struct Needed {
  VersionRanges deltas, snapshots;
};

/// What the versions of `kept` need: all that they have themselves, and for each the way that a
/// host without any base takes: the newest snapshot at or before it, and the deltas from there, as
/// find_paths() (store/materialize/plan.hpp) finds it.  The one place that knows: once readers
/// take shorter ways, this does.
/// Requires: all of `kept` can be built.
Needed what_is_needed(const BuildableVersions& there, const VersionRanges& kept);

/// One record's worth of what may be retired now.
struct Retirement {
  VersionRanges deltas, snapshots, versions;
  std::set<std::string, std::less<>> objects;
  std::uint64_t bytes = 0;                      // of objects
  std::uint64_t orphans = 0, orphan_bytes = 0;  // how many of the objects are orphans
  bool is_all = true;                           // false: there is more than one record may name

  [[nodiscard]] bool empty() const noexcept {
    return deltas.empty() && snapshots.empty() && objects.empty();
  }
};

/// What may be retired, given all that was.  `key_bytes_max`: of the objects' keys, about.
/// Throws Error: corrupt if the newest version cannot be built from what the log has left.
Retirement plan_retirement(const Inventory& inventory, const GcLog& log, const KeepPolicy& policy,
                           std::uint64_t key_bytes_max = kGcRecordKeyBytes);

}  // namespace weightfs
