// One version: Dijkstra's algorithm, backwards from it, since few versions before it matter.
// All: forwards, since every way to a version comes from versions before it.

#include "store/ways/way_map.hpp"

#include <functional>
#include <iterator>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace weightfs {
namespace {

/// A version that was reached backwards.
struct Reached {
  std::uint64_t price = 0;  // from here to the wanted version
  std::uint64_t hops = 0;
  WayHop next;  // the first hop from here; unset for the wanted version
  bool is_final = false;

  [[nodiscard]] bool is_better_than(const Reached& other) const noexcept {
    return std::tie(price, hops) < std::tie(other.price, other.hops);
  }
};

using ReachedVersions = std::unordered_map<std::uint64_t, Reached>;

Way way_from(std::uint64_t start, std::uint64_t wanted, const ReachedVersions& reached) {
  Way way{start, {}};
  for (std::uint64_t version = start; version != wanted;) {
    const WayHop& hop = reached.at(version).next;
    way.hops.push_back(hop);
    version = hop.versions.to;
  }
  return way;
}

}  // namespace

void WayMap::remove_skip(const VersionPair& versions) {
  const auto to = skips_.find(versions.to);
  if (to == skips_.end()) return;
  to->second.erase(versions.from);
  if (to->second.empty()) skips_.erase(to);
}

void WayMap::remove_skips_but(const std::set<VersionPair>& kept) {
  for (auto& [to, costs] : skips_) {
    std::erase_if(costs, [&, to = to](const auto& one) { return !kept.contains({one.first, to}); });
  }
  std::erase_if(skips_, [](const auto& one) { return one.second.empty(); });
}

std::optional<WayCost> WayMap::delta_to(std::uint64_t version) const {
  if (version <= 1) return std::nullopt;
  const auto known = deltas_.find(version);
  return known == deltas_.end() ? guess_ : known->second;
}

std::optional<Way> WayMap::find(std::uint64_t wanted) const {
  if (starts_.empty()) return std::nullopt;
  const std::uint64_t lowest = starts_.begin()->first;
  using Entry = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // price, hops, version
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  ReachedVersions reached;
  const auto reach = [&](std::uint64_t version, const Reached& how) {
    if (version < lowest) return;
    const auto [place, is_new] = reached.try_emplace(version, how);
    if (!is_new && (place->second.is_final || !how.is_better_than(place->second))) return;
    place->second = how;
    queue.emplace(how.price, how.hops, version);
  };
  std::optional<std::tuple<std::uint64_t, std::uint64_t>> best;  // price, hops
  std::uint64_t best_start = 0;
  reach(wanted, {});
  while (!queue.empty()) {
    const auto [price, hops, version] = queue.top();
    queue.pop();
    if (best && std::get<0>(*best) <= price) break;
    Reached& here = reached.at(version);
    if (std::exchange(here.is_final, true)) continue;
    if (const auto start = starts_.find(version); start != starts_.end()) {
      const std::tuple whole(price + start->second.price(), hops);
      if (!best || whole < *best) {
        best = whole;
        best_start = version;
      }
    }
    const auto hop = [&, price = price, hops = hops](const WayHop& by, const WayCost& cost) {
      reach(by.versions.from, {price + cost.price(), hops + 1, by, false});
    };
    if (const auto delta = delta_to(version)) hop({step_to(version), false}, *delta);
    const auto skips = skips_.find(version);
    if (skips == skips_.end()) continue;
    for (const auto& [from, cost] : skips->second) hop({{from, version}, true}, cost);
  }
  if (!best) return std::nullopt;
  return way_from(best_start, wanted, reached);
}

std::vector<WayEnd> WayMap::find_all(std::uint64_t newest) const {
  std::vector<WayEnd> ends(newest);
  const auto offer = [&](std::uint64_t version, const WayEnd& end) {
    WayEnd& best = ends[version - 1];
    const bool is_better = best.by == WayEnd::By::nothing ||
                           std::tie(end.price, end.hops) < std::tie(best.price, best.hops);
    if (is_better) best = end;
  };
  const auto hop = [&](const VersionPair& versions, WayEnd::By by, const WayCost& cost) {
    const WayEnd& before = ends[versions.from - 1];
    if (before.by == WayEnd::By::nothing) return;
    offer(versions.to, {by, versions.from, before.price + cost.price(), before.hops + 1});
  };
  for (std::uint64_t version = 1; version <= newest; version++) {
    if (const auto start = starts_.find(version); start != starts_.end()) {
      offer(version, {WayEnd::By::start, 0, start->second.price(), 0});
    }
    if (const auto delta = delta_to(version)) hop(step_to(version), WayEnd::By::delta, *delta);
    const auto skips = skips_.find(version);
    if (skips == skips_.end()) continue;
    for (const auto& [from, cost] : skips->second) hop({from, version}, WayEnd::By::skip, cost);
  }
  return ends;
}

bool WayMap::reaches_back(std::uint64_t wanted, std::uint64_t version) const {
  // From the versions that were reached, the delta chain of each goes down to the next one that has
  // no delta.
  std::set<std::uint64_t> cut;
  for (const auto& [to, cost] : deltas_) {
    if (!cost) cut.insert(to);
  }
  std::set<std::uint64_t, std::greater<>> open{wanted};
  while (!open.empty()) {
    const std::uint64_t top = *open.begin();
    open.erase(open.begin());
    const auto below = cut.upper_bound(top);
    const std::uint64_t end = below == cut.begin() ? 1 : *std::prev(below);
    if (end <= version) return true;
    for (auto skip = skips_.lower_bound(end); skip != skips_.end() && skip->first <= top; ++skip) {
      for (const auto& [from, cost] : skip->second) {
        if (from < end) open.insert(from);
      }
    }
  }
  return false;
}

}  // namespace weightfs
