#include "store/retention/keep.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "store/base/error.hpp"
#include "store/repository/skips.hpp"

namespace weightfs {
namespace {

using Place = HeldObject::Place;

/// Snapshots, deltas and skips that nothing needs, oldest first, until their keys would fill a
/// record.
class RetirementPlanner {
 public:
  RetirementPlanner(const Inventory& inventory, const GcLog& log, const KeepPolicy& policy,
                    const Unusable& unusable, std::uint64_t key_bytes_max)
      : inventory_(inventory),
        log_(log),
        policy_(policy),
        unusable_(unusable),
        key_bytes_max_(key_bytes_max),
        by_log_(inventory.versions, log.deltas, log.snapshots, log.needs),
        no_snapshots_(log.snapshots.with(unusable.snapshots)),
        there_(inventory.versions, log.deltas, no_snapshots_, log.needs) {}

  Retirement run() {
    if (inventory_.head() == 0) return {};
    if (!by_log_.can_build(inventory_.head())) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("the log of retired objects leaves nothing to build version {} from, "
                              "the newest; nothing is removed",
                              inventory_.head()));
    }
    choose_kept();
    sort_objects();
    find_ways();
    needed_ = what_is_needed(ways_, there_, kept_);
    plan_.starts = needed_.snapshots;
    note_missing();
    take_versions();
    take_skips();
    note_needs();
    note_versions();
    return std::move(plan_);
  }

 private:
  void choose_kept() {
    for (const VersionFacts& version : inventory_.versions) {
      const KeepReason reason = reason_to_keep(version, inventory_.head(), policy_);
      if (reason == KeepReason::none || !by_log_.can_build(version.number)) continue;
      if (!there_.can_build(version.number)) throw_lost(version.number);
      kept_.add(version.number);
      if (reason != KeepReason::newest) kept_alone_.push_back(version.number);
    }
  }

  [[noreturn]] void throw_lost(std::uint64_t version) const {
    throw Error(ErrorCode::corrupt,
                fmt::format("nothing is retired: version {}, which is to be kept, can be built "
                            "only from a snapshot that is not whole ({})",
                            version, unusable_.snapshots.text()));
  }

  /// Objects of versions that exist, by version or skip.
  void sort_objects() {
    by_version_.resize(inventory_.versions.size() + 1);
    for (const HeldObject& object : inventory_.objects) {
      if (object.place == Place::elsewhere || object.place == Place::above_head) continue;
      if (const auto skip = find_skip_key(object.key)) {
        by_skip_[skip->versions].push_back(&object);
        continue;
      }
      by_version_[object.version].push_back(&object);
      const bool is_snapshot = object.kind == ObjectKind::snapshot && object.place == Place::named;
      if (is_snapshot) snapshot_bytes_[object.version] += object.size_bytes;
    }
    // One on the Hub costs readers as much.  If it counted as nothing, versions would go on to be
    // built from it, by ever longer ways.
    for (const VersionFacts& version : inventory_.versions) {
      if (version.hub_bytes != 0) snapshot_bytes_[version.number] += version.hub_bytes;
    }
  }

  /// By the fewest bytes, for a host that has nothing.  Every delta is set: nothing is guessed.
  void find_ways() {
    WayMap map;
    for (const VersionFacts& version : inventory_.versions) {
      const std::uint64_t number = version.number;
      if (there_.has_snapshot(number)) map.set_start(number, {snapshot_bytes_[number], 0});
      std::optional<WayCost> delta;
      if (there_.has_delta(number)) delta = {version.delta_bytes, 0};
      map.set_delta(number, delta);
    }
    for (const auto& [versions, bytes] : usable_skips()) map.set_skip(versions, {bytes, 0});
    ways_ = map.find_all(inventory_.head());
  }

  // ---- skips ----

  /// Those that ways may use: needed ones, and others that may become so.
  [[nodiscard]] std::map<VersionPair, std::uint64_t> usable_skips() const {
    std::map<VersionPair, std::uint64_t> usable;
    for (const auto& [versions, facts] : inventory_.skips) {
      const bool is_needed = log_.needs.contains(versions);
      if (is_needed || may_be_needed(versions, facts)) usable.emplace(versions, facts.bytes);
    }
    for (const auto& [versions, sha256] : log_.needs) usable.emplace(versions, 0);
    return usable;
  }

  [[nodiscard]] bool may_be_needed(const VersionPair& versions, const SkipFacts& facts) const {
    const auto is_named = [&](const std::string& key) { return log_.objects.contains(key); };
    const bool is_removed = is_named(keys::skip_record(versions)) ||
                            std::ranges::any_of(facts.packs, [&](const std::string& pack) {
                              return is_named(keys::skip_pack(versions, pack));
                            });
    return !is_removed && !log_.skips.contains(versions) && !unusable_.skips.contains(versions) &&
           there_.can_build(versions.from) && there_.can_build(versions.to);
  }

  /// For a version that is kept for itself, a skip over the run of deltas that leads to it from
  /// another kept one, or from where the run begins.
  void note_missing() {
    for (const std::uint64_t version : kept_alone_) {
      std::uint64_t from = version;
      const auto ends = [&] { return from != version && kept_.contains(from); };
      while (ways_[from - 1].by == WayEnd::By::delta && !ends()) from = ways_[from - 1].from;
      const VersionPair skip{from, version};
      if (version < from + 2) continue;
      const bool is_known = inventory_.skips.contains(skip) || log_.skips.contains(skip);
      if (!is_known && !unusable_.skips.contains(skip)) plan_.missing.insert(skip);
    }
  }

  /// Whether a skip stays: it is on a way that is needed; or it leads from a kept version to
  /// another, so that hosts which have that catch up; or it is the last one from its version.
  [[nodiscard]] bool is_useful(const VersionPair& versions) const {
    if (needed_.skips.contains(versions)) return true;
    const bool has_from = needed_.versions.contains(versions.from);
    if (!inventory_.skips.contains(versions) || unusable_.skips.contains(versions)) {
      return has_from && needed_.versions.contains(versions.to);  // somebody may finish it
    }
    if (!has_from || !kept_.contains(versions.to)) return false;
    return kept_.contains(versions.from) || last_from_.at(versions.from) == versions.to;
  }

  void take_skips() {
    std::set<VersionPair> all(inventory_.unfinished);
    for (const auto& [versions, facts] : inventory_.skips) {
      all.insert(versions);
      std::uint64_t& last = last_from_[versions.from];
      last = std::max(last, versions.to);
    }
    for (const auto& [versions, sha256] : log_.needs) all.insert(versions);
    for (const VersionPair& versions : all) {
      if (!plan_.is_all) return;
      plan_.is_all = key_bytes_ < key_bytes_max_;
      if (plan_.is_all) take_skip(versions);
    }
  }

  void take_skip(const VersionPair& versions) {
    const bool was_retired = log_.skips.contains(versions);
    const bool is_retired = was_retired || !is_useful(versions);
    if (is_retired && !was_retired) {
      plan_.skips.insert(versions);
      name(keys::skip_record(versions));
      if (const auto skip = inventory_.skips.find(versions); skip != inventory_.skips.end()) {
        for (const std::string& pack : skip->second.packs) name(keys::skip_pack(versions, pack));
      }
    }
    const auto objects = by_skip_.find(versions);
    if (objects == by_skip_.end()) return;
    for (const HeldObject* object : objects->second) {
      const bool is_free = is_retired || object->place == Place::orphan;
      if (is_free && !log_.objects.contains(object->key)) take_object(*object);
    }
  }

  /// The skips without which a version that is needed could not be built any more.
  void note_needs() {
    std::set<std::uint64_t> built;
    const auto is_left = [&](const VersionPair& skip) {
      return log_.needs.contains(skip) && !plan_.skips.contains(skip) && built.contains(skip.from);
    };
    for (const auto& [first, last] : needed_.versions.ranges()) {
      for (std::uint64_t version = first; version <= last; version++) {
        const WayEnd& way = ways_[version - 1];
        const VersionPair skip{way.from, version};
        const bool has_snapshot = needed_.snapshots.contains(version);
        const bool has_delta = needed_.deltas.contains(version) && built.contains(version - 1);
        const bool is_new = way.by == WayEnd::By::skip && !is_left(skip);
        if (!has_snapshot && !has_delta && is_new) {
          plan_.needs.emplace(skip, inventory_.skips.at(skip).sha256);
        }
        built.insert(version);
      }
    }
  }

  // ---- deltas and snapshots ----

  void take_versions() {
    for (const VersionFacts& version : inventory_.versions) {
      plan_.is_all = key_bytes_ < key_bytes_max_;
      if (!plan_.is_all || !take_version(version.number)) return;
    }
  }

  /// Returns: false if the record is full.
  bool take_version(std::uint64_t number) {
    const bool delta = there_.has_delta(number) && !needed_.deltas.contains(number);
    const bool snapshot = there_.has_snapshot(number) && !needed_.snapshots.contains(number);
    const bool no_delta = delta || log_.deltas.contains(number);
    const bool no_snapshot = snapshot || log_.snapshots.contains(number);
    if (delta) plan_.deltas.add(number);
    if (snapshot) plan_.snapshots.add(number);
    if (delta || snapshot) name_objects(number, delta, snapshot);
    for (const HeldObject* object : by_version_[number]) {
      const bool is_pack = object->kind == ObjectKind::pack;
      const bool is_free = object->place == Place::orphan || (is_pack ? no_delta : no_snapshot);
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
    if (object.place != Place::orphan) return;
    plan_.orphans++;
    plan_.orphan_bytes += object.size_bytes;
  }

  /// Versions that can be built now, and not once the plan is carried out.
  void note_versions() {
    VersionRanges no_deltas = log_.deltas, no_snapshots = log_.snapshots;
    no_deltas.add(plan_.deltas);
    no_snapshots.add(plan_.snapshots);
    NeededSkips needs = log_.needs;
    needs.insert(plan_.needs.begin(), plan_.needs.end());
    for (const VersionPair& skip : plan_.skips) needs.erase(skip);
    const BuildableVersions after(inventory_.versions, no_deltas, no_snapshots, needs);
    for (const VersionFacts& version : inventory_.versions) {
      const std::uint64_t number = version.number;
      if (!by_log_.can_build(number) || after.can_build(number)) continue;
      if (kept_.contains(number)) {
        throw Error(ErrorCode::corrupt,
                    fmt::format("gc would retire what version {} needs: a bug", number));
      }
      plan_.versions.add(number);
    }
  }

  const Inventory& inventory_;
  const GcLog& log_;
  const KeepPolicy& policy_;
  const Unusable& unusable_;
  const std::uint64_t key_bytes_max_;
  const BuildableVersions by_log_;    // whatever is unusable
  const VersionRanges no_snapshots_;  // retired or unusable
  const BuildableVersions there_;
  VersionRanges kept_;
  std::vector<std::uint64_t> kept_alone_;  // for their number or tag
  std::vector<std::vector<const HeldObject*>> by_version_;
  std::map<VersionPair, std::vector<const HeldObject*>> by_skip_;
  std::map<std::uint64_t, std::uint64_t> snapshot_bytes_;
  std::map<std::uint64_t, std::uint64_t> last_from_;  // where the last skip of a version leads
  std::vector<WayEnd> ways_;
  Needed needed_;
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
                                     const VersionRanges& no_snapshots, const NeededSkips& needs)
    : versions_(versions), no_deltas_(no_deltas), no_snapshots_(no_snapshots) {
  bool has_parent = false;
  auto skip = needs.begin();  // by the version it leads to
  for (const VersionFacts& version : versions) {
    bool is_built = has_snapshot(version.number) || (has_delta(version.number) && has_parent);
    for (; skip != needs.end() && skip->first.to == version.number; ++skip) {
      is_built |= buildable_.contains(skip->first.from);
    }
    if (is_built) buildable_.add(version.number);
    has_parent = is_built;
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

Needed what_is_needed(const std::vector<WayEnd>& ways, const BuildableVersions& there,
                      const VersionRanges& kept) {
  Needed needed;
  for (const auto& [first, last] : kept.ranges()) {
    for (std::uint64_t one = first; one <= last; one++) {
      for (std::uint64_t version = one; version != 0 && !needed.versions.contains(version);) {
        needed.versions.add(version);
        const WayEnd& way = ways[version - 1];
        if (way.by == WayEnd::By::start) needed.snapshots.add(version);
        if (way.by == WayEnd::By::delta) needed.deltas.add(version);
        if (way.by == WayEnd::By::skip) needed.skips.insert({way.from, version});
        version = way.from;
      }
    }
  }
  for (const auto& [first, last] : kept.ranges()) {
    for (std::uint64_t version = first; version <= last; version++) {
      if (there.has_snapshot(version)) needed.snapshots.add(version);
      const bool goes_on = needed.versions.contains(version - 1) || version == ways.size();
      if (there.has_delta(version) && goes_on) needed.deltas.add(version);
    }
  }
  return needed;
}

Retirement plan_retirement(const Inventory& inventory, const GcLog& log, const KeepPolicy& policy,
                           const Unusable& unusable, std::uint64_t key_bytes_max) {
  return RetirementPlanner(inventory, log, policy, unusable, key_bytes_max).run();
}

}  // namespace weightfs
