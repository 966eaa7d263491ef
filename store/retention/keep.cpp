#include "store/retention/keep.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "store/base/error.hpp"

namespace weightfs {
namespace {

/// Snapshots and deltas that nothing needs, oldest first, until their keys would fill a record.
class RetirementPlanner {
 public:
  RetirementPlanner(const Inventory& inventory, const GcLog& log, const KeepPolicy& policy,
                    std::uint64_t key_bytes_max)
      : inventory_(inventory), log_(log), policy_(policy), key_bytes_max_(key_bytes_max) {}

  Retirement run() {
    if (inventory_.head() == 0) return {};
    const BuildableVersions there(inventory_.versions, log_.deltas, log_.snapshots);
    if (!there.can_build(inventory_.head())) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("the log of retired objects leaves nothing to build version {} from, "
                              "the newest; nothing is removed",
                              inventory_.head()));
    }
    const Needed needed = what_is_needed(there, kept_versions(there));
    sort_objects();
    for (const VersionFacts& version : inventory_.versions) {
      plan_.is_all = key_bytes_ < key_bytes_max_;
      if (!plan_.is_all || !take_version(version.number, there, needed)) break;
    }
    note_versions(there);
    return std::move(plan_);
  }

 private:
  [[nodiscard]] VersionRanges kept_versions(const BuildableVersions& there) const {
    VersionRanges kept;
    for (const VersionFacts& version : inventory_.versions) {
      const bool is_wanted =
          reason_to_keep(version, inventory_.head(), policy_) != KeepReason::none;
      if (is_wanted && there.can_build(version.number)) kept.add(version.number);
    }
    return kept;
  }

  /// Objects of versions that exist, by version.
  void sort_objects() {
    by_version_.resize(inventory_.versions.size() + 1);
    for (const HeldObject& object : inventory_.objects) {
      const bool is_candidate =
          object.place == HeldObject::Place::named || object.place == HeldObject::Place::orphan;
      if (is_candidate) by_version_[object.version].push_back(&object);
    }
  }

  /// Returns: false if the record is full.
  bool take_version(std::uint64_t number, const BuildableVersions& there, const Needed& needed) {
    const bool delta = there.has_delta(number) && !needed.deltas.contains(number);
    const bool snapshot = there.has_snapshot(number) && !needed.snapshots.contains(number);
    const bool no_delta = delta || log_.deltas.contains(number);
    const bool no_snapshot = snapshot || log_.snapshots.contains(number);
    if (delta) plan_.deltas.add(number);
    if (snapshot) plan_.snapshots.add(number);
    if (delta || snapshot) name_objects(number, delta, snapshot);
    for (const HeldObject* object : by_version_[number]) {
      const bool is_pack = object->kind == ObjectKind::pack;
      const bool is_free =
          object->place == HeldObject::Place::orphan || (is_pack ? no_delta : no_snapshot);
      if (!is_free || log_.objects.contains(object->key)) continue;
      // The rest is found again for the next record.
      if (key_bytes_ >= key_bytes_max_) return plan_.is_all = false;
      take_object(*object);
    }
    return true;
  }

  /// Names what the manifest does, whether or not LIST showed it: a snapshot's files it does not
  /// name one by one.
  void name_objects(std::uint64_t number, bool delta, bool snapshot) {
    const VersionFacts& version = inventory_.versions[number - 1];
    if (snapshot) name(keys::snapshot_hashes(number, version.snapshot));
    if (!delta) return;
    for (const std::string& pack : version.packs) name(keys::pack(number, pack));
  }

  void name(std::string key) {
    key_bytes_ += key.size() + 3;  // quotes and a comma
    plan_.objects.insert(std::move(key));
  }

  void take_object(const HeldObject& object) {
    name(object.key);
    plan_.bytes += object.size_bytes;
    if (object.place != HeldObject::Place::orphan) return;
    plan_.orphans++;
    plan_.orphan_bytes += object.size_bytes;
  }

  /// Versions that can be built now, and not once the plan is carried out.
  void note_versions(const BuildableVersions& there) {
    VersionRanges no_deltas = log_.deltas, no_snapshots = log_.snapshots;
    no_deltas.add(plan_.deltas);
    no_snapshots.add(plan_.snapshots);
    const BuildableVersions after(inventory_.versions, no_deltas, no_snapshots);
    for (const VersionFacts& version : inventory_.versions) {
      if (there.can_build(version.number) && !after.can_build(version.number)) {
        plan_.versions.add(version.number);
      }
    }
    if (after.can_build(inventory_.head())) return;
    throw Error(ErrorCode::corrupt, "gc would retire what the newest version needs: a bug");
  }

  const Inventory& inventory_;
  const GcLog& log_;
  const KeepPolicy& policy_;
  const std::uint64_t key_bytes_max_;
  std::vector<std::vector<const HeldObject*>> by_version_;
  std::uint64_t key_bytes_ = 0;
  Retirement plan_;
};

}  // namespace

KeepReason reason_to_keep(const VersionFacts& version, std::uint64_t head,
                          const KeepPolicy& policy) {
  if (version.number + std::max<std::uint64_t>(policy.newest, 1) > head) return KeepReason::newest;
  if (policy.every != 0 && version.number % policy.every == 0) return KeepReason::every;
  const bool has_kept_tag =
      !version.tag.empty() && std::ranges::any_of(policy.tags, [&](const std::string& glob) {
        return ::fnmatch(glob.c_str(), version.tag.c_str(), 0) == 0;
      });
  return has_kept_tag ? KeepReason::tag : KeepReason::none;
}

BuildableVersions::BuildableVersions(const std::vector<VersionFacts>& versions,
                                     const VersionRanges& no_deltas,
                                     const VersionRanges& no_snapshots)
    : versions_(versions), no_deltas_(no_deltas), no_snapshots_(no_snapshots) {
  bool has_parent = false;
  for (const VersionFacts& version : versions) {
    has_parent = has_snapshot(version.number) || (has_delta(version.number) && has_parent);
    if (has_parent) buildable_.add(version.number);
  }
}

bool BuildableVersions::has_delta(std::uint64_t version) const {
  return versions_[version - 1].has_delta && !no_deltas_.contains(version);
}

bool BuildableVersions::has_snapshot(std::uint64_t version) const {
  return !versions_[version - 1].snapshot.empty() && !no_snapshots_.contains(version);
}

bool BuildableVersions::can_build(std::uint64_t version) const {
  return buildable_.contains(version);
}

Needed what_is_needed(const BuildableVersions& there, const VersionRanges& kept) {
  Needed needed;
  if (kept.empty()) return needed;
  bool is_parent_needed = false;
  for (std::uint64_t version = kept.ranges().back().second; version > 0; version--) {
    const bool is_kept = kept.contains(version);
    if (!is_kept && !is_parent_needed) continue;
    const bool ends_here = there.has_snapshot(version);
    if (ends_here) needed.snapshots.add(version);
    const bool takes_delta = there.has_delta(version) && (is_kept || !ends_here);
    if (takes_delta) needed.deltas.add(version);
    is_parent_needed = !ends_here;
  }
  return needed;
}

Retirement plan_retirement(const Inventory& inventory, const GcLog& log, const KeepPolicy& policy,
                           std::uint64_t key_bytes_max) {
  return RetirementPlanner(inventory, log, policy, key_bytes_max).run();
}

}  // namespace weightfs
