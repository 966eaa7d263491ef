// Keep: which versions a bucket keeps, what they need, and what may therefore be retired.
//
//     kept      the user's wish: the newest, tagged ones, every 64th
//     needed    what a host that has nothing builds a kept version from, by the fewest bytes: a
//               snapshot, deltas and skip deltas
//     retired   every other delta, snapshot and skip delta; and orphans, which nothing names
//
// A skip delta that replaces deltas becomes *needed* by the record that retires them.
//
// Threads: pure functions on values.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/repository/gc_log.hpp"
#include "store/retention/inventory.hpp"
#include "store/ways/way_map.hpp"

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

/// Which versions can be built, and what is there to build them from, by what the log retired and
/// needs.
class BuildableVersions {
 public:
  BuildableVersions(const std::vector<VersionFacts>& versions, const VersionRanges& no_deltas,
                    const VersionRanges& no_snapshots, const NeededSkips& needs);

  [[nodiscard]] bool has_delta(std::uint64_t version) const;
  [[nodiscard]] bool has_snapshot(std::uint64_t version) const;
  [[nodiscard]] bool can_build(std::uint64_t version) const;
  [[nodiscard]] const VersionRanges& buildable() const noexcept { return buildable_; }

 private:
  const std::vector<VersionFacts>& versions_;  // owned by the caller
  const VersionRanges &no_deltas_, &no_snapshots_;
  VersionRanges buildable_;
};

/// What versions need.
struct Needed {
  VersionRanges deltas, snapshots;
  std::set<VersionPair> skips;
  VersionRanges versions;  // they themselves, and what lies on their ways
};

/// What the versions of `kept` need: their ways, of which `ways` has the ends (WayMap::find_all());
/// their own snapshots; and the deltas between neighbours that stay: whoever has one of these goes
/// on from it.  The newest keeps its delta too.
/// Requires: all of `kept` can be built.
Needed what_is_needed(const std::vector<WayEnd>& ways, const BuildableVersions& there,
                      const VersionRanges& kept);

/// One record's worth of what may be retired now.
struct Retirement {
  VersionRanges deltas, snapshots, versions;
  std::set<VersionPair> skips;
  NeededSkips needs;     // from now on; nobody has checked them yet
  VersionRanges starts;  // snapshots that stay; nobody has looked whether they are there
  std::set<std::string, std::less<>> objects;
  std::uint64_t bytes = 0;                      // of objects
  std::uint64_t orphans = 0, orphan_bytes = 0;  // how many of the objects are orphans
  bool is_all = true;                           // false: there is more than one record may name
  /// Skips that nobody made yet, by which versions that are kept for their number or tag would
  /// need fewer deltas.
  std::set<VersionPair> missing;

  [[nodiscard]] bool empty() const noexcept {
    return deltas.empty() && snapshots.empty() && skips.empty() && objects.empty();
  }
};

/// What is there, but of no use.
struct Unusable {
  std::set<VersionPair> skips;  // unfit, or could not be made
  VersionRanges snapshots;      // of which objects are missing or damaged; they are not retired
};

/// What may be retired, given all that was.  `key_bytes_max`: of the objects' keys, about.
/// Throws Error: corrupt if the newest version cannot be built from what the log has left, or a
/// version that is to be kept not without an unusable snapshot.
Retirement plan_retirement(const Inventory& inventory, const GcLog& log, const KeepPolicy& policy,
                           const Unusable& unusable = {},
                           std::uint64_t key_bytes_max = kGcRecordKeyBytes);

}  // namespace weightfs
