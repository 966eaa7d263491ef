// Dijkstra's algorithm over versions; a few thousand spans at most.
#include "store/patches/patch_path.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace weightfs {
namespace {

struct Reached {
  std::uint64_t cost = std::numeric_limits<std::uint64_t>::max();
  const SpanInfo* by = nullptr;
  bool is_back = false;
};

class PathSearch {
 public:
  PathSearch(std::span<const SpanInfo> spans, Direction direction) {
    for (const SpanInfo& span : spans) {
      edges_[span.ends.first].push_back({&span, false});
      if (direction == Direction::any) edges_[span.ends.last].push_back({&span, true});
    }
  }

  std::optional<PatchPath> run(const PatchVersion& from, const PatchVersion& to) {
    reached_[from].cost = 0;
    queue_.emplace(0, from);
    while (!queue_.empty()) {
      const auto [cost, version] = *queue_.begin();
      queue_.erase(queue_.begin());
      if (version == to) return way(from, to);
      for (const auto& [span, is_back] : edges_[version]) {
        reach(is_back ? span->ends.first : span->ends.last,
              {cost + span->size_bytes + kStepCostBytes, span, is_back});
      }
    }
    return std::nullopt;
  }

 private:
  void reach(const PatchVersion& version, const Reached& way) {
    Reached& known = reached_[version];
    if (way.cost >= known.cost) return;
    queue_.erase({known.cost, version});
    known = way;
    queue_.emplace(known.cost, version);
  }

  [[nodiscard]] PatchPath way(const PatchVersion& from, const PatchVersion& to) const {
    PatchPath path;
    for (PatchVersion at = to; at != from; at = path.back().from()) {
      const Reached& reached = reached_.at(at);
      path.push_back({*reached.by, reached.is_back});
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  std::map<PatchVersion, std::vector<std::pair<const SpanInfo*, bool>>> edges_;
  std::map<PatchVersion, Reached> reached_;
  std::set<std::pair<std::uint64_t, PatchVersion>> queue_;  // by cost
};

}  // namespace

std::optional<PatchPath> find_path(std::span<const SpanInfo> spans, const PatchVersion& from,
                                   const PatchVersion& to, Direction direction) {
  return PathSearch(spans, direction).run(from, to);
}

std::uint64_t size_bytes_of(const PatchPath& path) noexcept {
  std::uint64_t sum = 0;
  for (const PathStep& step : path) sum += step.span.size_bytes;
  return sum;
}

}  // namespace weightfs
