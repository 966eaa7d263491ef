// Dijkstra's algorithm over versions; a few thousand spans at most.
#include "store/patches/patch_path.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace weightfs {

PathsFrom::PathsFrom(std::span<const SpanInfo> spans, const PatchVersion& from, Direction direction)
    : from_(from) {
  std::map<PatchVersion, std::vector<std::pair<const SpanInfo*, bool>>> edges;
  for (const SpanInfo& span : spans) {
    edges[span.ends.first].emplace_back(&span, false);
    if (direction == Direction::any) edges[span.ends.last].emplace_back(&span, true);
  }
  std::set<std::pair<std::uint64_t, PatchVersion>> queue;  // by cost
  const auto reach = [&](const PatchVersion& version, const Reached& way) {
    const auto [known, is_new] = reached_.emplace(version, way);
    if (!is_new) {
      if (way.cost >= known->second.cost) return;
      queue.erase({known->second.cost, version});
      known->second = way;
    }
    queue.emplace(way.cost, version);
  };
  reach(from, {0, nullptr, false});
  while (!queue.empty()) {
    const auto [cost, version] = *queue.begin();
    queue.erase(queue.begin());
    for (const auto& [span, is_back] : edges[version]) {
      reach(is_back ? span->ends.first : span->ends.last,
            {cost + span->size_bytes + kStepCostBytes, span, is_back});
    }
  }
}

std::vector<PatchVersion> PathsFrom::versions() const {
  std::vector<PatchVersion> versions;
  for (const auto& [version, way] : reached_) versions.push_back(version);
  return versions;
}

bool PathsFrom::reaches(const PatchVersion& version) const { return reached_.contains(version); }

PatchPath PathsFrom::path_to(const PatchVersion& version) const {
  PatchPath path;
  for (PatchVersion at = version; at != from_; at = path.back().from()) {
    const Reached& reached = reached_.at(at);
    path.push_back({*reached.by, reached.is_back});
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::optional<PatchPath> find_path(std::span<const SpanInfo> spans, const PatchVersion& from,
                                   const PatchVersion& to, Direction direction) {
  const PathsFrom paths(spans, from, direction);
  if (!paths.reaches(to)) return std::nullopt;
  return paths.path_to(to);
}

std::uint64_t size_bytes_of(const PatchPath& path) noexcept {
  std::uint64_t sum = 0;
  for (const PathStep& step : path) sum += step.span.size_bytes;
  return sum;
}

}  // namespace weightfs
