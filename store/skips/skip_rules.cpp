#include "store/skips/skip_rules.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "store/format/pack_bytes.hpp"
#include "store/patches/tensor_table_id.hpp"
#include "store/repository/skips.hpp"

namespace weightfs {
namespace {

constexpr std::array<std::uint64_t, 2> kSkipSteps{8, 64};
constexpr std::uint64_t kSnapshotSkipStep = 16;

bool has_snapshot(const Version& version, const GcLog& retired) {
  return version.manifest.snapshot && !retired.snapshots.contains(version.number());
}

/// The newest version up to `number` that has one; 0: none has.
std::uint64_t snapshot_up_to(std::uint64_t number, History& history, const GcLog& retired,
                             const Context& context) {
  while (number > 0) {
    const auto version = history.get(number, context);
    if (has_snapshot(*version, retired)) break;
    number = version->manifest.snapshot_before.value_or(number - 1);
  }
  return number;
}

}  // namespace

std::vector<VersionPair> wanted_skips(std::uint64_t to, std::uint64_t snapshot) {
  std::vector<VersionPair> skips;
  const auto add = [&](std::uint64_t from) {
    const VersionPair skip{from, to};
    if (from >= 1 && from + 2 <= to && std::ranges::count(skips, skip) == 0) skips.push_back(skip);
  };
  for (const std::uint64_t step : kSkipSteps) {
    if (to % step == 0 && to > step) add(to - step);
  }
  if (to % kSnapshotSkipStep == 0 && snapshot < to) add(snapshot);
  std::ranges::sort(skips, {}, [](const VersionPair& skip) { return skip.to - skip.from; });
  return skips;
}

bool is_wanted(History& history, const VersionPair& versions, const GcLog& retired,
               const Context& context) {
  if (retired.skips.contains(versions)) return false;
  if (retired.versions.contains(versions.from) || retired.versions.contains(versions.to)) {
    return false;
  }
  const auto from = history.get(versions.from, context), to = history.get(versions.to, context);
  if (from->manifest.layout.sha256 == to->manifest.layout.sha256) return true;
  const auto table_of = [&](const Version& version) {
    return tensor_table_id(*history.layout(version, context));
  };
  return table_of(*from) == table_of(*to);
}

std::vector<VersionPair> skips_by_rule(History& history, std::uint64_t newest, std::uint64_t count,
                                       const GcLog& retired, const Context& context) {
  const std::uint64_t after = newest - std::min(newest, count);
  std::vector<VersionPair> skips;
  std::uint64_t snapshot = snapshot_up_to(after, history, retired, context);
  for (std::uint64_t to = after + 1; to <= newest; to++) {
    if (has_snapshot(*history.get(to, context), retired)) snapshot = to;
    const std::vector<VersionPair> wanted = wanted_skips(to, snapshot);
    skips.insert(skips.end(), wanted.rbegin(), wanted.rend());
  }
  std::ranges::reverse(skips);
  return skips;
}

std::vector<VersionPair> missing_skips(History& history, std::uint64_t newest, std::uint64_t count,
                                       const GcLog& retired, const Context& context) {
  const std::uint64_t after = newest - std::min(newest, count);
  std::set<VersionPair> there;
  for (const ListedSkip& skip : list_skips(history.repository(), after, context)) {
    there.insert(skip.versions);
  }
  std::vector<VersionPair> missing = skips_by_rule(history, newest, count, retired, context);
  std::ranges::reverse(missing);
  std::erase_if(missing, [&](const VersionPair& skip) {
    return there.contains(skip) || !is_wanted(history, skip, retired, context);
  });
  return missing;
}

std::uint64_t delta_bytes(History& history, const VersionPair& versions, const Context& context) {
  std::uint64_t bytes = 0;
  for (std::uint64_t number = versions.from + 1; number <= versions.to; number++) {
    const auto version = history.get(number, context);
    if (version->manifest.delta) bytes += pack_bytes(*version->manifest.delta);
  }
  return bytes;
}

}  // namespace weightfs
