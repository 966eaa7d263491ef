#include "store/patches/plan_folds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/store/patches/patch_fixture.hpp"

namespace weightfs {
namespace {

using test::ends_of;
using test::patch_version;

constexpr std::uint64_t kOneBytes = 1'000'000;

// Spans without patches: what a plan says is done to the list.
struct SpanModel {
  std::vector<SpanInfo> spans;
  std::uint64_t taken_bytes = 0, folded_bytes = 0;

  void add(const SpanEnds& ends, std::uint64_t bytes = kOneBytes) {
    spans.push_back({ends, 1, bytes});
    (ends.level == PatchLevel::one ? taken_bytes : folded_bytes) += bytes;
  }
  [[nodiscard]] bool has(const PatchSpan& span) const {
    return std::any_of(spans.begin(), spans.end(),
                       [&](const SpanInfo& info) { return info.span() == span; });
  }
  // A fold has 0.8 of the bytes of its parts for each doubling, roughly as measured.
  static std::uint64_t folded_size(const PatchPath& from) { return size_bytes_of(from) * 6 / 10; }

  void do_plan(const FoldPlan& plan) {
    for (const PatchSpan& span : plan.drops) {
      ASSERT_TRUE(has(span)) << to_string(span);
      std::erase_if(spans, [&](const SpanInfo& info) { return info.span() == span; });
    }
    for (const Fold& fold : plan.folds) {
      PatchVersion at = fold.into.first;
      for (const PathStep& step : fold.from) {
        ASSERT_TRUE(has(step.span.span())) << to_string(step.span.span());
        ASSERT_FALSE(step.is_back);
        ASSERT_EQ(step.from(), at);
        ASSERT_EQ(step.span.ends.table, fold.into.table);
        at = step.to();
      }
      ASSERT_EQ(at, fold.into.last);
      ASSERT_FALSE(has(fold.into.span()));
      add(fold.into, folded_size(fold.from));
    }
  }
  void run(const FoldLimits& limits) {
    for (int round = 0;; round++) {
      ASSERT_LT(round, 10) << "it does not end";
      const FoldPlan plan = plan_folds(spans, limits);
      if (plan.is_empty()) return;
      do_plan(plan);
    }
  }
  [[nodiscard]] std::optional<PatchPath> path(std::uint64_t from, std::uint64_t to,
                                              Direction direction = Direction::any) const {
    return find_path(spans, patch_version(from), patch_version(to), direction);
  }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const SpanInfo& span : spans) sum += span.size_bytes;
    return sum;
  }
};

TEST(PlanFolds, NothingOfNothing) { EXPECT_TRUE(plan_folds({}, {}).is_empty()); }

TEST(PlanFolds, FoldsEightOnceTheyAreThere) {
  SpanModel model;
  for (std::uint64_t version = 1; version <= 7; version++) {
    model.add(ends_of(PatchLevel::one, version - 1, version));
    EXPECT_TRUE(plan_folds(model.spans, {}).is_empty());
  }
  model.add(ends_of(PatchLevel::one, 7, 8));
  const FoldPlan plan = plan_folds(model.spans, {});
  ASSERT_EQ(plan.folds.size(), 1u);
  EXPECT_EQ(plan.folds[0].into, ends_of(PatchLevel::eight, 0, 8));
  EXPECT_EQ(plan.folds[0].from.size(), 8u);
  EXPECT_TRUE(plan.drops.empty());
  model.run({});
  EXPECT_EQ(model.spans.size(), 9u);
}

TEST(PlanFolds, ReachesEveryVersionOfTheHistoryBackwardsAndOlderOnesBy64) {
  SpanModel model;
  std::size_t most_spans = 0;
  for (std::uint64_t version = 1; version <= 1000; version++) {
    model.add(ends_of(PatchLevel::one, version - 1, version));
    ASSERT_NO_FATAL_FAILURE(model.run({}));
    most_spans = std::max(most_spans, model.spans.size());
    if (version % 7 != 0) continue;
    for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(64, version); back++) {
      const auto path = model.path(version, version - back);
      ASSERT_TRUE(path) << version << " to " << version - back;
      EXPECT_LE(path->size(), 2u * (7 + 7)) << version << " to " << version - back;
    }
    EXPECT_LE(model.path(version / 64 * 64, version)->size(), 7u + 7) << version;
    for (std::uint64_t old = 0; old + 64 < version; old += 64) {
      ASSERT_TRUE(model.path(version, old)) << version << " to " << old;
    }
  }
  EXPECT_LE(most_spans, 64u + 8 + 9 + 8 + 16);
  const double amplification =
      static_cast<double>(model.folded_bytes) / static_cast<double>(model.taken_bytes);
  EXPECT_LT(amplification, 1.5);
}

TEST(PlanFolds, FromABaseAtMostOneAnd7And7) {
  for (const std::uint64_t base : {0u, 10u, 64u}) {
    SCOPED_TRACE(base);
    SpanModel model;
    const FoldLimits limits{.base = patch_version(base)};
    for (std::uint64_t version = base + 1; version <= 400; version++) {
      model.add(ends_of(PatchLevel::one, version - 1, version));
      ASSERT_NO_FATAL_FAILURE(model.run(limits));
      const auto path = model.path(base, version, Direction::forwards);
      ASSERT_TRUE(path) << version;
      EXPECT_LE(path->size(), version / 64 == base / 64 ? 21u : 15u) << version;
      const auto cumulative = std::count_if(
          model.spans.begin(), model.spans.end(),
          [](const SpanInfo& span) { return span.ends.level == PatchLevel::cumulative; });
      EXPECT_LE(cumulative, 1);
      for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(64, version - base); back++) {
        ASSERT_TRUE(model.path(version, version - back)) << version << " to " << version - back;
      }
    }
  }
}

TEST(PlanFolds, ACumulativeSpanAboveHalfOfTheVersionAsksForANewBase) {
  SpanModel model;
  const FoldLimits limits{.newest_bytes = 25 * kOneBytes, .base = patch_version(0)};
  bool was_outgrown = false;
  for (std::uint64_t version = 1; version <= 400; version++) {
    model.add(ends_of(PatchLevel::one, version - 1, version));
    ASSERT_NO_FATAL_FAILURE(model.run(limits));
    was_outgrown = was_outgrown || plan_folds(model.spans, limits).is_base_outgrown;
    ASSERT_TRUE(model.path(0, version, Direction::forwards)) << version;
  }
  EXPECT_TRUE(was_outgrown);
  FoldLimits moved = limits;
  moved.base = patch_version(400);
  ASSERT_NO_FATAL_FAILURE(model.run(moved));
  EXPECT_FALSE(plan_folds(model.spans, moved).is_base_outgrown);
  for (const SpanInfo& span : model.spans) EXPECT_NE(span.ends.level, PatchLevel::cumulative);
}

TEST(PlanFolds, NeverAcrossAChangeOfTheTensorTable) {
  SpanModel model;
  for (std::uint64_t version = 1; version <= 200; version++) {
    if (version % 30 == 13) continue;  // changed here: no patches lead over it
    SpanEnds ends = ends_of(PatchLevel::one, version - 1, version);
    ends.table = test::id_of((version + 17) / 30);
    model.add(ends);
    ASSERT_NO_FATAL_FAILURE(model.run({}));
  }
  for (const SpanInfo& span : model.spans) {
    const std::uint64_t first = span.ends.first.version, last = span.ends.last.version;
    EXPECT_EQ((first + 17) / 30, (last + 17) / 30) << to_string(span.span());
  }
  for (std::uint64_t version = 193; version <= 200; version++) {
    EXPECT_TRUE(model.path(200, version)) << version;
  }
  EXPECT_FALSE(model.path(200, 192));
  EXPECT_TRUE(model.path(192, 163));
}

TEST(PlanFolds, SpansOverSeveralVersionsAreFoldedToo) {
  SpanModel model;
  test::Random rng = test::make_rng();
  std::uint64_t version = 0;
  std::set<std::uint64_t> known{0};
  while (version < 500) {
    const std::uint64_t next = version + 1 + (rng() % 4 == 0 ? rng() % 12 : 0);
    model.add(ends_of(PatchLevel::one, version, next));
    version = next;
    known.insert(version);
    ASSERT_NO_FATAL_FAILURE(model.run({}));
    for (const std::uint64_t old : known) {
      if (old + 64 < version) continue;
      ASSERT_TRUE(model.path(version, old)) << version << " to " << old;
    }
  }
  EXPECT_TRUE(model.path(version, 0));
}

TEST(PlanFolds, WhatIsTooMuchGoesOldestFirst) {
  SpanModel model;
  const FoldLimits limits{.history = 16, .patches_bytes = 60 * kOneBytes};
  for (std::uint64_t version = 1; version <= 1000; version++) {
    model.add(ends_of(PatchLevel::one, version - 1, version));
    ASSERT_NO_FATAL_FAILURE(model.run(limits));
    EXPECT_LE(model.bytes(), limits.patches_bytes);
    for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(16, version); back++) {
      ASSERT_TRUE(model.path(version, version - back)) << version << " to " << version - back;
    }
  }
  EXPECT_FALSE(model.path(1000, 0));
}

TEST(PlanFolds, WithoutABaseTheHistoryBecomesShorterIfItIsTooLarge) {
  SpanModel model;
  for (std::uint64_t version = 1; version <= 201; version++) {
    model.add(ends_of(PatchLevel::one, version - 1, version));
    ASSERT_NO_FATAL_FAILURE(model.run({.patches_bytes = 20 * kOneBytes})) << version;
    EXPECT_LE(model.bytes(), 20 * kOneBytes);
    for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(6, version); back++) {
      ASSERT_TRUE(model.path(version, version - back)) << version << " to " << version - back;
    }
  }
  ASSERT_NO_FATAL_FAILURE(model.run({.patches_bytes = kOneBytes}));
  EXPECT_TRUE(model.path(201, 200));
  EXPECT_FALSE(model.path(201, 199));
  ASSERT_NO_FATAL_FAILURE(model.run({.patches_bytes = 0}));
  EXPECT_TRUE(model.spans.empty());
}

TEST(PlanFolds, WithABaseNothingOfTheHistoryGoes) {
  SpanModel model;
  const FoldLimits limits{.history = 16, .patches_bytes = 1, .base = patch_version(0)};
  for (std::uint64_t version = 1; version <= 200; version++) {
    model.add(ends_of(PatchLevel::one, version - 1, version));
    ASSERT_NO_FATAL_FAILURE(model.run(limits));
    for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(16, version); back++) {
      ASSERT_TRUE(model.path(version, version - back)) << version << " to " << version - back;
    }
  }
}

TEST(PlanFolds, WhatLeadsFromTheBaseIsNeverRemoved) {
  SpanModel model;
  const FoldLimits limits{.history = 4, .patches_bytes = 1, .base = patch_version(3)};
  for (std::uint64_t version = 1; version <= 300; version++) {
    model.add(ends_of(PatchLevel::one, version - 1, version));
    ASSERT_NO_FATAL_FAILURE(model.run(limits));
    if (version <= 3) continue;
    ASSERT_TRUE(model.path(3, version, Direction::forwards)) << version;
  }
}

}  // namespace
}  // namespace weightfs
