#include "store/patches/fold_spans.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stop_token>

#include "tests/store/patches/patch_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/meddling_coder.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::ends_of;
using test::patch_version;
using test::PatchFixture;
using test::PlainVersion;

constexpr std::uint64_t kSmallFile = 6000;
constexpr std::uint64_t kTinyFile = 2000;  // many of them, whatever the random bytes are

// Versions 0.. as plain bytes, with a span from each to the next.
struct FoldTest : testing::Test {
  test::Random rng = test::make_rng();
  PatchFixture at;
  std::vector<PlainVersion> plain{test::random_version(rng, 3, 4)};

  void add_version() {
    const PlainVersion& before = plain.size() > 1 ? plain[plain.size() - 2] : plain.back();
    plain.push_back(test::changed_version(plain.back(), before, rng));
    const std::uint64_t last = plain.size() - 1;
    at.install(ends_of(PatchLevel::one, last - 1, last), plain[last - 1], plain[last]);
  }
  Fold fold_of(std::uint64_t first, std::uint64_t last, PatchLevel level = PatchLevel::eight) {
    return {ends_of(level, first, last), find_path(at.table->list(), patch_version(first),
                                                   patch_version(last), Direction::forwards)
                                             .value()};
  }
  void expect_reached(std::uint64_t from, std::uint64_t to) {
    const auto path = find_path(at.table->list(), patch_version(from), patch_version(to));
    ASSERT_TRUE(path) << from << " to " << to;
    EXPECT_EQ(at.rebuilt(plain[from], *path), plain[to]) << from << " to " << to;
  }
  // What is under the keys of a span, without the first version's and the level's part.
  std::map<ChunkPlace, ChunkPatch> patches_of(const SpanInfo& span) {
    std::map<ChunkPlace, ChunkPatch> patches;
    for (auto& [place, patch] : at.table->read_page(span, {}, 1 << 30).patches) {
      patches[place] = patch;
    }
    return patches;
  }
  std::map<ChunkPlace, ChunkPatch> patches_between(std::uint64_t first, std::uint64_t last) {
    std::map<ChunkPlace, ChunkPatch> patches;
    for (const auto& [place, bytes] : plain[first]) {
      auto patch = make_chunk_patch(test::kPatchKind, bytes, plain[last].at(place), at.scratch);
      if (patch) patches[place] = *patch;
    }
    return patches;
  }
};

TEST_F(FoldTest, MakesThePatchesThatAComparisonWouldMake) {
  for (int i = 0; i < 8; i++) add_version();
  const SpanInfo span = fold_spans(*at.table, fold_of(0, 8), {});
  EXPECT_EQ(patches_of(span), patches_between(0, 8));
  EXPECT_EQ(span.chunk_count, patches_between(0, 8).size());
  EXPECT_EQ(at.patch_count(), at.recorded_count());
  expect_reached(0, 8);
  expect_reached(8, 0);
}

TEST_F(FoldTest, WhatCameBackVanishes) {
  add_version();
  plain.push_back(plain[0]);
  at.install(ends_of(PatchLevel::one, 1, 2), plain[1], plain[2]);
  const SpanInfo span = fold_spans(*at.table, fold_of(0, 2), {});
  EXPECT_EQ(span.chunk_count, 0u);
  EXPECT_EQ(span.size_bytes, 0u);
  expect_reached(0, 2);
}

TEST_F(FoldTest, TheResultDoesNotDependOnTheSources) {
  for (int i = 0; i < 8; i++) add_version();
  const auto from_ones =
      patches_of(fold_spans(*at.table, fold_of(0, 8, PatchLevel::sixty_four), {}));
  at.table->remove({PatchLevel::sixty_four, 0, 8});
  fold_spans(*at.table, fold_of(0, 3), {});
  fold_spans(*at.table, fold_of(3, 7), {});
  Fold fold = fold_of(0, 8, PatchLevel::sixty_four);
  EXPECT_LT(fold.from.size(), 8u);
  EXPECT_EQ(patches_of(fold_spans(*at.table, fold, {})), from_ones);
}

TEST_F(FoldTest, WhoIsStoppedKeepsWhatIsFullAndGoesOnThere) {
  for (int i = 0; i < 8; i++) add_version();
  std::stop_source stop;
  const Context context{stop.get_token()};
  at.db->before_step = [&, first = at.db->steps] {
    if (at.db->steps == first + 6) stop.request_stop();
  };
  Fold fold = fold_of(0, 8);
  EXPECT_EQ(code_of([&] { fold_spans(*at.table, fold, context, kTinyFile); }),
            ErrorCode::cancelled);
  at.db->before_step = nullptr;
  const auto part = at.table->find_part(fold.into);
  ASSERT_TRUE(part);
  EXPECT_GT(part->info.chunk_count, 0u);
  const std::uint64_t written = at.table->counters().folded_bytes;
  at.open();
  ASSERT_EQ(at.table->find_part(fold.into), part);
  const SpanInfo span = fold_spans(*at.table, fold, {}, kTinyFile);
  EXPECT_EQ(patches_of(span), patches_between(0, 8));
  EXPECT_EQ(at.table->counters().folded_bytes, span.size_bytes);  // nothing twice
  EXPECT_GT(span.size_bytes, written);
}

TEST_F(FoldTest, WhoDiesAtAnyStepLosesNothing) {
  for (int i = 0; i < 8; i++) add_version();
  bool was_resumed = false;
  int dies_at = 0;
  for (bool has_died = true; has_died; dies_at++) {
    SCOPED_TRACE(dies_at);
    ASSERT_LT(dies_at, 200);
    at.table->remove_if([](const SpanEnds& ends, bool) { return ends.level != PatchLevel::one; });
    at.open();
    const Fold fold = fold_of(0, 8);
    at.db->dies_at = dies_at;
    has_died = false;
    try {
      fold_spans(*at.table, fold, {}, kSmallFile);
    } catch (const Error& error) {
      ASSERT_STREQ(error.what(), "killed");
      has_died = true;
    }
    at.open();
    ASSERT_EQ(at.patch_count(), at.recorded_count());
    expect_reached(0, 8);
    was_resumed = was_resumed || at.table->find_part(fold.into).has_value();
    const SpanInfo span = fold_spans(*at.table, fold, {}, kSmallFile);
    ASSERT_EQ(patches_of(span), patches_between(0, 8));
    ASSERT_EQ(at.patch_count(), at.recorded_count());
  }
  EXPECT_GT(dies_at, 6);
  EXPECT_TRUE(was_resumed);
}

TEST_F(FoldTest, ADamagedSourceIsNamedAndNothingIsMade) {
  for (int i = 0; i < 8; i++) add_version();
  std::string key;
  at.db->read_range(ColumnFamily::patches, span_key(PatchLevel::one, 5), {},
                    [&](std::string_view found, std::string_view) {
                      key = std::string(found);
                      return false;
                    });
  std::string value = at.db->find(ColumnFamily::patches, key).value();
  value.back() = static_cast<char>(value.back() ^ 1);
  at.db->write({{ColumnFamily::patches, key, value}}, Durability::power);
  std::string message;
  EXPECT_EQ(code_of([&] { fold_spans(*at.table, fold_of(0, 8), {}); }, &message),
            ErrorCode::corrupt);
  EXPECT_NE(message.find("from versions 4..5 (level 1)"), std::string::npos) << message;
  EXPECT_EQ(at.table->find({PatchLevel::eight, 0, 8}), std::nullopt);
}

TEST_F(FoldTest, ACoderThatWantsManyGetsManyChunksAtOnce) {
  for (int i = 0; i < 8; i++) add_version();
  const SpanInfo by_one = fold_spans(*at.table, fold_of(0, 8), {});
  const auto expected = patches_of(by_one);
  at.table->remove(by_one.span());
  const auto coder = std::make_shared<test::MeddlingCoder>();
  const SpanInfo by_many = fold_spans(*at.table, fold_of(0, 8), {}, kSortedFileBytesMax, coder);
  EXPECT_EQ(patches_of(by_many), expected);
  EXPECT_GT(coder->folded, 1U);
  EXPECT_EQ(coder->fold_calls, 1U);
}

TEST_F(FoldTest, ASourceThatGoesMeanwhileIsNotFound) {
  for (int i = 0; i < 8; i++) add_version();
  const Fold fold = fold_of(0, 8);
  at.table->remove({PatchLevel::one, 4, 5});
  EXPECT_EQ(code_of([&] { fold_spans(*at.table, fold, {}); }), ErrorCode::not_found);
}

TEST_F(FoldTest, FoldsAndRemovesAllThereIsToDo) {
  for (int i = 0; i < 150; i++) add_version();
  const FoldedAll done = fold_all(*at.table, {.base = patch_version(0)}, {});
  EXPECT_EQ(done.folds, 18u + 2 + 1);
  EXPECT_EQ(at.patch_count(), at.recorded_count());
  const auto restart = find_path(at.table->list(), patch_version(0), patch_version(150));
  ASSERT_TRUE(restart);
  EXPECT_EQ(restart->front().span.ends.level, PatchLevel::cumulative);
  EXPECT_LE(restart->size(), 15u);
  for (std::uint64_t version = 86; version < 150; version++) {
    expect_reached(150, version);
    expect_reached(0, version);
  }
  const FoldedAll again = fold_all(*at.table, {.base = patch_version(0)}, {});
  EXPECT_EQ(again.folds + again.drops, 0u);
  const PatchCounters counters = at.table->counters();
  EXPECT_GT(counters.folded_bytes, 0u);
  EXPECT_LT(counters.folded_bytes, 3 * counters.taken_bytes);
}

/// What is held stays, though there is no room; what is folded of it goes at once, and would be
/// folded for ever.
TEST_F(FoldTest, WhatIsHeldIsNotFoldedAgainAndAgain) {
  for (int i = 0; i < 20; i++) add_version();
  const auto path = find_path(at.table->list(), patch_version(0), patch_version(8));
  const PatchTable::Hold held = at.table->hold(path.value());
  const FoldedAll done = fold_all(*at.table, {.history = 0, .patches_bytes = 1}, {});
  EXPECT_LE(done.folds, 20U);
  EXPECT_TRUE(find_path(at.table->list(), patch_version(0), patch_version(8)));
}

TEST_F(FoldTest, WhatWasBegunOfAFoldThatIsNotPlannedAnyMoreIsRemoved) {
  add_version();
  const SpanEnds ends = ends_of(PatchLevel::cumulative, 0, 1);
  at.table->install_part(ends, at.files_between(ends.span(), plain[0], plain[1]), {9, 0});
  EXPECT_GT(at.patch_count(), at.table->list()[0].chunk_count);
  fold_all(*at.table, {}, {});
  EXPECT_EQ(at.table->find_part(ends), std::nullopt);
  EXPECT_EQ(at.patch_count(), at.table->list()[0].chunk_count);
}

TEST_F(FoldTest, AThousandSpans) {
  plain[0] = test::random_version(rng, 1, 2, 100);
  for (int i = 0; i < 1000; i++) add_version();
  EXPECT_EQ(at.table->list().size(), 1000u);
  at.open();
  EXPECT_EQ(at.table->list().size(), 1000u);
  expect_reached(0, 1000);
  expect_reached(1000, 3);
  fold_all(*at.table, {}, {});
  EXPECT_LT(at.table->list().size(), 130u);
  at.open();
  EXPECT_EQ(at.patch_count(), at.recorded_count());
  expect_reached(0, 1000);
  expect_reached(1000, 0);
  for (std::uint64_t version = 936; version < 1000; version += 9) expect_reached(1000, version);
}

// Versions come, the tensor table changes, spans are folded, processes die: whatever two versions
// the history promises, the bytes are those of the plain copies.
TEST_F(FoldTest, RandomHistoriesAgainstPlainCopies) {
  std::uint64_t table = 1, table_since = 0;
  FoldLimits limits{.history = 16};
  const auto die_sometimes = [&](const std::function<void()>& body) {
    at.db->dies_at = rng() % 3 == 0 ? at.db->steps + static_cast<int>(rng() % 12) : -1;
    try {
      body();
    } catch (const Error& error) {
      ASSERT_STREQ(error.what(), "killed");
    }
    if (at.db->dies_at >= 0) at.open();
  };
  for (int round = 0; round < 150; round++) {
    SCOPED_TRACE(round);
    const std::uint64_t newest = plain.size() - 1;
    if (rng() % 60 == 0) {  // another tensor table
      plain.push_back(test::random_version(rng, 1 + static_cast<std::uint32_t>(rng() % 4), 3));
      table++;
      table_since = newest + 1;
    } else {
      const PlainVersion before = newest > table_since ? plain[newest - 1] : plain[newest];
      plain.push_back(test::changed_version(plain[newest], before, rng));
      SpanEnds ends = ends_of(PatchLevel::one, newest, newest + 1);
      ends.table = test::id_of(table);
      while (!at.table->find(ends.span())) {
        die_sometimes([&] { at.install(ends, plain[newest], plain[newest + 1]); });
      }
    }
    die_sometimes([&] { fold_all(*at.table, limits, {}); });
    if (round % 9 != 0) continue;
    at.open();
    ASSERT_EQ(at.patch_count(), at.recorded_count());
    const std::uint64_t oldest =
        std::max<std::uint64_t>(table_since, newest + 1 > 16 ? newest + 1 - 16 : 0);
    for (int i = 0; i < 4; i++) {
      const std::uint64_t count = newest + 2 - oldest;
      expect_reached(oldest + rng() % count, oldest + rng() % count);
      if (HasFatalFailure()) return;
    }
    for (const SpanInfo& span : at.table->list()) {  // never across a change
      ASSERT_EQ(plain[span.ends.first.version].size(), plain[span.ends.last.version].size());
    }
  }
}

}  // namespace
}  // namespace weightfs
