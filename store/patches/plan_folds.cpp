// The spans of one level are cut into runs: spans that join, and whose last versions lie in one
// bucket of 8 (or 64) versions. A run is folded when its bucket can get no more spans, which is
// when there is a version at its end or beyond.
//
//     level 1    ...| 8 | 9 | 10 |       | 12 | ... | 16 | 17 ...      patches of 11 were not taken
//     bucket        |<------------ 9..16 ------------->|
//     runs               | 8..10 |       | 11..16      |
#include "store/patches/plan_folds.hpp"

#include <algorithm>
#include <array>
#include <tuple>

namespace weightfs {
namespace {

constexpr std::uint64_t kCumulativeStep = 64;  // versions

struct LevelRule {
  PatchLevel into, from;
  std::uint64_t width;  // versions of a bucket
};
constexpr std::array kLevelRules{LevelRule{PatchLevel::eight, PatchLevel::one, 8},
                                 LevelRule{PatchLevel::sixty_four, PatchLevel::eight, 64}};

constexpr std::uint64_t bucket_of(std::uint64_t last, std::uint64_t width) noexcept {
  return (last - 1) / width;
}

bool is_oldest_first(const SpanInfo& a, const SpanInfo& b) noexcept {
  return std::tie(a.ends.last, a.ends.level) < std::tie(b.ends.last, b.ends.level);
}

PathStep forwards(const SpanInfo& span) { return {span, false}; }

class FoldPlanner {
 public:
  FoldPlanner(std::span<const SpanInfo> spans, const FoldLimits& limits)
      : spans_(oldest_first(spans)), limits_(limits) {}

  FoldPlan run() {
    if (spans_.empty()) return {};
    newest_ = spans_.back().ends.last;
    for (const LevelRule& rule : kLevelRules) fold_level(rule);
    find_needed();
    if (limits_.base) fold_cumulative(*limits_.base);
    drop_folded();
    drop_cumulative();
    drop_oldest();
    return plan_;
  }

 private:
  // ---- folds ----

  void fold_level(const LevelRule& rule) {
    std::vector<SpanInfo> run;
    for (const SpanInfo& span : spans_) {
      if (span.ends.level != rule.from) continue;
      if (!run.empty() && !goes_on(run.back(), span, rule.width)) close_run(rule, run);
      run.push_back(span);
    }
    if (!run.empty()) close_run(rule, run);
  }

  static bool goes_on(const SpanInfo& before, const SpanInfo& span, std::uint64_t width) {
    return before.ends.last == span.ends.first && before.ends.table == span.ends.table &&
           bucket_of(before.ends.last.version, width) == bucket_of(span.ends.last.version, width);
  }

  void close_run(const LevelRule& rule, std::vector<SpanInfo>& run) {
    const SpanEnds ends{rule.into, run.front().ends.first, run.back().ends.last,
                        run.back().ends.table};
    const std::uint64_t bucket = bucket_of(ends.last.version, rule.width);
    const bool is_complete = newest_.version >= (bucket + 1) * rule.width;
    if (is_complete && !is_covered(ends, rule.into) && !will_get_more(bucket, rule)) {
      Fold fold{ends, {}};
      for (const SpanInfo& span : run) fold.from.push_back(forwards(span));
      plan_.folds.push_back(std::move(fold));
    }
    run.clear();
  }

  /// Whether a span of this level leads over all that `ends` leads over.
  [[nodiscard]] bool is_covered(const SpanEnds& ends, PatchLevel level) const {
    return std::any_of(spans_.begin(), spans_.end(), [&](const SpanInfo& span) {
      return span.ends.level == level && span.ends.table == ends.table &&
             span.ends.first.version <= ends.first.version &&
             ends.last.version <= span.ends.last.version;
    });
  }

  /// Whether a fold of this plan makes a span that belongs to the bucket.
  [[nodiscard]] bool will_get_more(std::uint64_t bucket, const LevelRule& rule) const {
    return std::any_of(plan_.folds.begin(), plan_.folds.end(), [&](const Fold& fold) {
      return fold.into.level == rule.from &&
             bucket_of(fold.into.last.version, rule.width) == bucket;
    });
  }

  // To the last multiple of 64 that can be reached, by way of the present cumulative span if that
  // is the cheapest. Waits for other folds: what they make is cheaper to read.
  void fold_cumulative(const PatchVersion& base) {
    const SpanInfo* const present = find_cumulative(base);
    plan_.is_base_outgrown = present != nullptr && present->size_bytes > limits_.newest_bytes / 2;
    if (plan_.is_base_outgrown || !plan_.folds.empty()) return;
    const std::uint64_t reached = present != nullptr ? present->ends.last.version : base.version;
    for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
      const PatchVersion& last = span->ends.last;
      if (last.version <= reached) return;
      if (last.version % kCumulativeStep != 0) continue;
      std::optional<PatchPath> path = find_path(spans_, base, last, Direction::forwards);
      if (!path) continue;
      if (path->size() > 1) {  // one span does as well
        plan_.folds.push_back(
            {{PatchLevel::cumulative, base, last, span->ends.table}, std::move(*path)});
      }
      return;
    }
  }

  /// The longest from the base.
  [[nodiscard]] const SpanInfo* find_cumulative(const PatchVersion& base) const {
    const auto found = std::find_if(spans_.rbegin(), spans_.rend(), [&](const SpanInfo& span) {
      return span.ends.level == PatchLevel::cumulative && span.ends.first == base;
    });
    return found == spans_.rend() ? nullptr : &*found;
  }

  // ---- drops ----

  // What leads from the base to the newest version, and what this plan folds.
  void find_needed() {
    if (!limits_.base) return;
    const auto path = find_path(spans_, *limits_.base, newest_, Direction::forwards);
    if (!path) return;
    for (const PathStep& step : *path) needed_.push_back(step.span.span());
  }

  [[nodiscard]] bool is_needed(const PatchSpan& span) const {
    if (std::find(needed_.begin(), needed_.end(), span) != needed_.end()) return true;
    return std::any_of(plan_.folds.begin(), plan_.folds.end(), [&](const Fold& fold) {
      return std::any_of(fold.from.begin(), fold.from.end(),
                         [&](const PathStep& step) { return step.span.span() == span; });
    });
  }

  [[nodiscard]] bool is_old(const SpanInfo& span) const {
    return newest_.version >= limits_.history &&
           span.ends.last.version <= newest_.version - limits_.history;
  }

  [[nodiscard]] bool is_dropped(const PatchSpan& span) const {
    return std::find(plan_.drops.begin(), plan_.drops.end(), span) != plan_.drops.end();
  }

  void drop(const SpanInfo& span) {
    if (!is_needed(span.span()) && !is_dropped(span.span())) plan_.drops.push_back(span.span());
  }

  void drop_folded() {
    for (const SpanInfo& span : spans_) {
      if (!is_old(span)) continue;
      for (const LevelRule& rule : kLevelRules) {
        if (span.ends.level == rule.from && is_covered(span.ends, rule.into)) drop(span);
      }
    }
  }

  void drop_cumulative() {
    const SpanInfo* const present = limits_.base ? find_cumulative(*limits_.base) : nullptr;
    for (const SpanInfo& span : spans_) {
      if (span.ends.level == PatchLevel::cumulative && &span != present) drop(span);
    }
  }

  void drop_oldest() {
    std::uint64_t bytes = 0;
    for (const SpanInfo& span : spans_) bytes += is_dropped(span.span()) ? 0 : span.size_bytes;
    for (const SpanInfo& span : spans_) {
      if (span.ends.level == PatchLevel::cumulative || !is_old(span)) continue;
      if (bytes <= limits_.patches_bytes) return;
      drop_of(span, bytes);
    }
    if (!limits_.base) shorten_history(bytes);
  }

  // All that ends at a version goes with it: what a span was folded from never outlives it, or it
  // would be folded again.
  void shorten_history(std::uint64_t bytes) {
    std::uint64_t last = 0;
    for (const SpanInfo& span : spans_) {
      if (bytes <= limits_.patches_bytes && span.ends.last.version != last) return;
      last = span.ends.last.version;
      drop_of(span, bytes);
    }
  }

  void drop_of(const SpanInfo& span, std::uint64_t& bytes) {
    if (is_dropped(span.span()) || is_needed(span.span())) return;
    drop(span);
    bytes -= span.size_bytes;
  }

  std::vector<SpanInfo> spans_;  // oldest first, by last version
  const FoldLimits limits_;
  PatchVersion newest_;
  std::vector<PatchSpan> needed_;
  FoldPlan plan_;
};

}  // namespace

std::vector<SpanInfo> oldest_first(std::span<const SpanInfo> spans) {
  std::vector<SpanInfo> sorted(spans.begin(), spans.end());
  std::sort(sorted.begin(), sorted.end(), is_oldest_first);
  return sorted;
}

FoldPlan plan_folds(std::span<const SpanInfo> spans, const FoldLimits& limits) {
  return FoldPlanner(spans, limits).run();
}

}  // namespace weightfs
