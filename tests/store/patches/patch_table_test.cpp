#include "store/patches/patch_table.hpp"

#include <gtest/gtest.h>

#include "tests/store/patches/patch_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/rotten_files.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::ends_of;
using test::PatchFixture;
using test::PlainVersion;

struct PatchTableTest : testing::Test {
  test::Random rng = test::make_rng();
  PatchFixture at;
  PlainVersion one = test::random_version(rng, 3, 4);
  PlainVersion two = nudged(one), three = nudged(two);

  PlainVersion nudged(const PlainVersion& version) {
    PlainVersion next = version;
    for (auto& [place, bytes] : next) bytes = test::nudged_bf16(bytes, 0.2, rng);
    for (auto& [place, bytes] : next) bytes[0] ^= std::byte{1};  // every chunk has changed
    return next;
  }
  void install_both() {
    at.install(ends_of(PatchLevel::one, 1, 2), one, two);
    at.install(ends_of(PatchLevel::one, 2, 3), two, three);
  }
  PatchPath path(std::uint64_t from, std::uint64_t to) {
    return find_path(at.table->list(), test::patch_version(from), test::patch_version(to)).value();
  }
};

TEST_F(PatchTableTest, RebuildsForwardsAndBackwardsAlsoAfterReopening) {
  install_both();
  for (int round = 0; round < 2; round++) {
    EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
    EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
    EXPECT_EQ(at.rebuilt(three, path(3, 1)), one);
    EXPECT_EQ(at.table->list().size(), 2u);
    EXPECT_GT(at.table->size_bytes(), 0u);
    EXPECT_EQ(at.table->counters().taken_bytes, at.table->size_bytes());
    EXPECT_EQ(at.table->counters().folded_bytes, 0u);
    EXPECT_EQ(at.patch_count(), 24u);
    at.open();
  }
}

TEST_F(PatchTableTest, FindsThePatchOfOneChunk) {
  PlainVersion other = one;
  other[{1, 2}] = two[{1, 2}];
  at.install(ends_of(PatchLevel::one, 1, 2), one, other);
  const SpanInfo span = at.table->list().at(0);
  EXPECT_EQ(span.chunk_count, 1u);
  EXPECT_EQ(at.table->find_patch(span, {1, 1}), std::nullopt);
  const auto patch = at.table->find_patch(span, {1, 2});
  ASSERT_TRUE(patch);
  Bytes bytes = one[{1, 2}];
  apply_chunk_patches(std::vector{*patch}, test::kPatchKind, bytes, at.scratch, "");
  EXPECT_EQ(bytes, (two[{1, 2}]));
  EXPECT_EQ(read_chunk_patches(*at.table, path(1, 2), {1, 2}, at.scratch), std::vector{*patch});
  EXPECT_EQ(read_chunk_patches(*at.table, path(2, 1), {1, 2}, at.scratch),
            std::vector{invert_chunk_patch(*patch, at.scratch, "")});
}

TEST_F(PatchTableTest, ASpanWithoutChangesIsASpan) {
  at.install(ends_of(PatchLevel::one, 1, 2), one, one);
  at.open();
  ASSERT_EQ(at.table->list().size(), 1u);
  EXPECT_EQ(at.table->list()[0].chunk_count, 0u);
  EXPECT_EQ(at.rebuilt(one, path(1, 2)), one);
}

TEST_F(PatchTableTest, PagesHaveAtLeastOnePatchAndEnd) {
  install_both();
  const SpanInfo span = at.table->list().at(1);
  std::size_t seen = 0;
  ChunkPlace from;
  while (true) {
    const PatchTable::Page page = at.table->read_page(span, from, 1);
    seen += page.patches.size();
    if (page.is_last) break;
    ASSERT_EQ(page.patches.size(), 1u);
    from = page.patches[0].first;
    from.chunk++;
  }
  EXPECT_EQ(seen, 12u);
  EXPECT_EQ(at.table->read_page(span, {}, 1 << 20).patches.size(), 12u);
  EXPECT_EQ(at.table->read_page(span, {1, 2}, 1 << 20).patches.size(), 6u);
  EXPECT_TRUE(at.table->read_page(span, {3, 0}, 1 << 20).patches.empty());
}

TEST_F(PatchTableTest, ReadersTurnPagesAndSkip) {
  install_both();
  for (const std::size_t page_bytes : {1u, 600u, 2000u, 1u << 20}) {
    for (const ChunkPlace from : {ChunkPlace{0, 0}, ChunkPlace{1, 2}}) {
      for (const unsigned every : {1u, 3u}) {
        PatchReader reader(*at.table, path(1, 3), from, page_bytes);
        PlainVersion version = one;
        unsigned count = 0;
        for (auto& [place, bytes] : version) {
          if (place < from || count++ % every != 0) continue;
          if (every == 1) {
            EXPECT_EQ(reader.next_place(), place);
          }
          apply_chunk_patches(reader.take(place, at.scratch), test::kPatchKind, bytes, at.scratch,
                              "");
          EXPECT_EQ(bytes, three.at(place));
        }
        EXPECT_EQ(reader.next_place().has_value(), every == 3);
      }
    }
  }
}

TEST_F(PatchTableTest, RemovesASpanWithItsPatches) {
  install_both();
  EXPECT_FALSE(at.table->remove({PatchLevel::one, 1, 3}));
  EXPECT_FALSE(at.table->remove({PatchLevel::eight, 1, 2}));
  EXPECT_TRUE(at.table->remove({PatchLevel::one, 1, 2}));
  EXPECT_EQ(at.patch_count(), 12u);
  EXPECT_EQ(at.table->list().size(), 1u);
  at.open();
  EXPECT_EQ(at.table->list().size(), 1u);
  EXPECT_EQ(at.rebuilt(two, path(2, 3)), three);
  EXPECT_EQ(at.table->remove_if([](const SpanEnds&, bool) { return true; }), 1u);
  EXPECT_EQ(at.patch_count(), 0u);
  EXPECT_EQ(at.table->size_bytes(), 0u);
}

TEST_F(PatchTableTest, WhatIsHeldIsNotRemovedUnlessItIsDamaged) {
  install_both();
  const PatchSpan first{PatchLevel::one, 1, 2}, second{PatchLevel::one, 2, 3};
  const auto any = [](const SpanEnds&, bool) { return true; };
  {
    const PatchTable::Hold held = at.table->hold(path(1, 2));
    PatchTable::Hold again = at.table->hold(path(1, 3));
    EXPECT_FALSE(at.table->remove_if_unheld(first));
    EXPECT_FALSE(at.table->remove_if_unheld(second));
    EXPECT_EQ(at.table->remove_if(any), 0U);
    again = {};
    EXPECT_TRUE(at.table->remove_if_unheld(second));
    EXPECT_EQ(at.table->remove_if(any), 0U);
    EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
  }
  EXPECT_EQ(at.table->remove_if(any), 1U);
  install_both();
  const PatchTable::Hold held = at.table->hold(path(1, 2));
  EXPECT_TRUE(at.table->remove(first));
}

TEST_F(PatchTableTest, FilesAreSplitAndNoneIsLargerThanAsked) {
  constexpr std::uint64_t kFileBytes = 6000;
  const SpanEnds ends = ends_of(PatchLevel::one, 1, 2);
  PatchFileWriter writer = at.table->make_writer(ends.span(), kFileBytes);
  for (const auto& [place, bytes] : one) {
    writer.add(place, *make_chunk_patch(test::kPatchKind, bytes, two.at(place), at.scratch));
  }
  PatchFiles files = writer.take();
  EXPECT_GT(files.files.size(), 1u);
  std::uint64_t sum = 0;
  for (const SortedFile& file : files.files) {
    EXPECT_LE(file.size_bytes(), kFileBytes);
    sum += file.size_bytes();
  }
  EXPECT_EQ(files.size_bytes, sum);
  EXPECT_EQ(files.chunk_count, 12u);
  at.table->install(ends, std::move(files));
  EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
}

TEST_F(PatchTableTest, FilesThatAreNotInstalledAreRemoved) {
  { (void)at.files_between({PatchLevel::one, 1, 2}, one, two); }
  EXPECT_TRUE(std::filesystem::is_empty(at.files()));
  install_both();
  EXPECT_TRUE(std::filesystem::is_empty(at.files()));
}

// ---- parts ----

TEST_F(PatchTableTest, APartIsNoSpanUntilTheRestIsThere) {
  const SpanEnds ends = ends_of(PatchLevel::eight, 1, 2);
  PlainVersion half = one;
  for (auto& [place, bytes] : half) {
    if (place < ChunkPlace{1, 2}) bytes = two[place];
  }
  at.table->install_part(ends, at.files_between(ends.span(), one, half), {1, 2});
  for (int round = 0; round < 2; round++) {
    EXPECT_TRUE(at.table->list().empty());
    EXPECT_EQ(at.table->find(ends.span()), std::nullopt);
    ASSERT_TRUE(at.table->find_part(ends));
    EXPECT_EQ(at.table->find_part(ends)->next, (ChunkPlace{1, 2}));
    EXPECT_EQ(at.table->find_part(ends)->info.chunk_count, 6u);
    EXPECT_EQ(at.table->find_part(ends_of(PatchLevel::eight, 1, 2, 1)), std::nullopt);
    EXPECT_GT(at.table->size_bytes(), 0u);
    at.open();
  }
  PlainVersion rest = two;
  for (auto& [place, bytes] : rest) {
    if (place < ChunkPlace{1, 2}) bytes = one[place];
  }
  at.table->install(ends, at.files_between(ends.span(), one, rest));
  EXPECT_EQ(at.table->find_part(ends), std::nullopt);
  ASSERT_TRUE(at.table->find(ends.span()));
  EXPECT_EQ(at.table->find(ends.span())->chunk_count, 12u);
  EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
  EXPECT_EQ(at.table->counters().folded_bytes, at.table->size_bytes());
}

TEST_F(PatchTableTest, APartOfOtherEndsIsReplaced) {
  const SpanEnds ends = ends_of(PatchLevel::eight, 1, 3);
  at.table->install_part(ends, at.files_between(ends.span(), one, three), {2, 0});
  at.install(ends_of(PatchLevel::eight, 2, 3), two, three);
  EXPECT_EQ(at.table->find_part(ends), std::nullopt);
  EXPECT_EQ(at.rebuilt(two, path(2, 3)), three);
  EXPECT_EQ(at.patch_count(), 12u);
}

// ---- generations ----

TEST_F(PatchTableTest, ARepositoryMadeAnewDoesNotUseOldPatches) {
  install_both();
  at.install(ends_of(PatchLevel::one, 2, 3, 1), two, one);  // takes the place of the old 2..3
  const auto spans = at.table->list();
  ASSERT_EQ(spans.size(), 2u);
  const auto connected = [&](const PatchVersion& from, const PatchVersion& to) {
    return find_path(spans, from, to).has_value();
  };
  EXPECT_FALSE(connected(test::patch_version(1), test::patch_version(3)));
  EXPECT_FALSE(connected(test::patch_version(1), test::patch_version(3, 1)));
  EXPECT_FALSE(connected(test::patch_version(2), test::patch_version(3, 1)));
  EXPECT_TRUE(connected(test::patch_version(2, 1), test::patch_version(3, 1)));
  EXPECT_EQ(at.patch_count(), 24u);
  EXPECT_EQ(at.table->remove_if(
                [](const SpanEnds& ends, bool) { return ends.last == test::patch_version(2); }),
            1u);
}

TEST_F(PatchTableTest, TheSameSpanAgainIsKeptAsItIs) {
  install_both();
  const PatchCounters before = at.table->counters();
  at.install(ends_of(PatchLevel::one, 1, 2), one, two);
  EXPECT_EQ(at.table->counters(), before);
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
  EXPECT_TRUE(std::filesystem::is_empty(at.files()));
}

// ---- a process that dies ----

// Dies at every step of `change`; returns at how many.  After each: what is recorded is there, and
// nothing else.
int die_at_each_step(PatchFixture& at, const std::function<void()>& prepare,
                     const std::function<void()>& change, const std::function<void()>& check) {
  for (int dies_at = 0;; dies_at++) {
    SCOPED_TRACE(dies_at);
    at.open();
    at.table->remove_if([](const SpanEnds&, bool) { return true; });
    prepare();
    at.open();
    at.db->dies_at = dies_at;
    bool has_died = false;
    try {
      change();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "killed");
      has_died = true;
    }
    at.open();
    EXPECT_EQ(at.patch_count(), at.recorded_count());
    check();
    if (!has_died || testing::Test::HasFailure()) return dies_at;
  }
}

TEST_F(PatchTableTest, WhoDiesWhileInstallingHasTheSpanOrNothing) {
  bool was_without = false;
  const int steps = die_at_each_step(
      at, [] {}, [&] { at.install(ends_of(PatchLevel::one, 1, 2), one, two); },
      [&] {
        if (at.table->list().empty()) {
          was_without = true;
          return;
        }
        EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
      });
  EXPECT_GE(steps, 4);
  EXPECT_TRUE(was_without);
}

TEST_F(PatchTableTest, WhoDiesWhileRemovingHasTheSpanOrNothing) {
  const int steps = die_at_each_step(
      at, [&] { install_both(); },
      [&] {
        at.table->remove({PatchLevel::one, 1, 2});
      },
      [&] {
        EXPECT_EQ(at.rebuilt(two, path(2, 3)), three);
        if (at.table->list().size() < 2) return;
        EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
      });
  EXPECT_EQ(steps, 2);
}

TEST_F(PatchTableTest, WhoDiesWhileReplacingHasOneOfThemOrNothing) {
  const int steps = die_at_each_step(
      at, [&] { install_both(); }, [&] { at.install(ends_of(PatchLevel::one, 2, 3, 1), two, one); },
      [&] {
        EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
        const auto spans = at.table->list();
        if (const auto way = find_path(spans, test::patch_version(2), test::patch_version(3))) {
          EXPECT_EQ(at.rebuilt(two, *way), three);
        }
        if (const auto way =
                find_path(spans, test::patch_version(2, 1), test::patch_version(3, 1))) {
          EXPECT_EQ(at.rebuilt(two, *way), one);
        }
      });
  EXPECT_GE(steps, 5);
}

// The process goes on after a write that failed half-way.
TEST_F(PatchTableTest, WhatAFailedInstallLeftIsReplacedByTheNext) {
  const auto files = [&](const PlainVersion& to) {
    return at.files_between({PatchLevel::one, 1, 2}, one, to);
  };
  PatchFiles first = files(three), second = files(two);
  at.db->dies_at = at.db->steps + 2;  // between the patches and the record
  EXPECT_EQ(
      code_of([&] { at.table->install(ends_of(PatchLevel::one, 1, 2, 1), std::move(first)); }),
      ErrorCode::io);
  EXPECT_EQ(at.patch_count(), 12u);
  EXPECT_TRUE(at.table->list().empty());
  at.db->dies_at = -1;
  at.table->install(ends_of(PatchLevel::one, 1, 2), std::move(second));
  EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
}

// ---- damage ----

std::string key_of_first_patch(const Db& db) {
  std::string found;
  db.read_range(ColumnFamily::patches, {}, {}, [&](std::string_view key, std::string_view) {
    found = std::string(key);
    return false;
  });
  return found;
}

TEST_F(PatchTableTest, ADamagedPatchIsAnErrorThatNamesIt) {
  install_both();
  const std::string key = key_of_first_patch(*at.db);
  std::string value = at.db->find(ColumnFamily::patches, key).value();
  value[value.size() / 2] = static_cast<char>(value[value.size() / 2] ^ 16);
  at.db->write({{ColumnFamily::patches, key, value}}, Durability::power);
  const SpanInfo span = at.table->list().at(0);
  for (const auto& read :
       std::vector<std::function<void()>>{[&] {
                                            (void)at.table->find_patch(span, {0, 0});
                                          },
                                          [&] { (void)at.table->read_page(span, {}, 1 << 20); },
                                          [&] { (void)at.rebuilt(one, path(1, 3)); }}) {
    std::string message;
    EXPECT_EQ(code_of(read, &message), ErrorCode::corrupt);
    EXPECT_NE(message.find("the patch of tensor 0, chunk 0 from versions 1..2 (level 1)"),
              std::string::npos)
        << message;
  }
  EXPECT_NO_THROW((void)at.table->find_patch(span, {0, 1}));
}

TEST_F(PatchTableTest, APatchThatIsGoneIsFoundByTheHash) {
  install_both();
  at.db->write({{ColumnFamily::patches, key_of_first_patch(*at.db), std::nullopt}},
               Durability::power);
  EXPECT_EQ(code_of([&] { (void)at.rebuilt(one, path(1, 3)); }), ErrorCode::corrupt);
}

TEST_F(PatchTableTest, ARecordThatCannotBeReadLosesItsSpanOnly) {
  install_both();
  const std::string key = span_record_key({PatchLevel::one, 1, 2});
  const std::string value = at.db->find(ColumnFamily::store, key).value();
  for (const std::string& bad :
       {std::string(), value.substr(1), value + "x", "\x02" + value.substr(1)}) {
    at.db->write({{ColumnFamily::store, key, bad}}, Durability::power);
    at.open();
    EXPECT_EQ(at.table->list().size(), 1u);
    EXPECT_EQ(at.patch_count(), 12u);
    EXPECT_EQ(at.db->find(ColumnFamily::store, key), std::nullopt);
  }
  EXPECT_EQ(at.rebuilt(two, path(2, 3)), three);
}

/// Returns: how many files of patches.
std::size_t rot_patch_files(PatchFixture& at, test::Rot rot = test::Rot::block) {
  at.table.reset();
  at.db.reset();
  return test::rot_family(at.parent / "db", "patches", rot);
}

// RocksDB finds it by a checksum of its own, and the whole store was made anew for it.
TEST_F(PatchTableTest, AFileThatRottedCostsPatchesAndNothingElse) {
  install_both();
  at.db->write({{ColumnFamily::store, "other", "record"}}, Durability::power);
  ASSERT_GT(rot_patch_files(at), 0u);
  at.open();
  EXPECT_TRUE(at.table->list().empty());
  EXPECT_EQ(at.patch_count(), 0u);
  EXPECT_EQ(at.db->find(ColumnFamily::store, "other"), "record");
  install_both();
  at.open();
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
}

// RocksDB refused the whole database, and the store was emptied: images, pins, the queue.
TEST_F(PatchTableTest, AFileWhoseIndexRottedOrThatIsGoneCostsPatchesAndNothingElse) {
  for (const test::Rot rot : test::kRots) {
    SCOPED_TRACE(static_cast<int>(rot));
    install_both();
    at.db->write({{ColumnFamily::store, "other", "record"}}, Durability::power);
    ASSERT_GT(rot_patch_files(at, rot), 0u);
    at.open();
    EXPECT_TRUE(at.table->list().empty());
    EXPECT_EQ(at.table->size_bytes(), 0u);
    EXPECT_EQ(at.patch_count(), 0u);
    EXPECT_EQ(at.db->find(ColumnFamily::store, "other"), "record");
    EXPECT_EQ(at.db->find(ColumnFamily::store, span_record_key({PatchLevel::one, 1, 2})),
              std::nullopt);
    install_both();
    at.open();
    EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
  }
}

TEST_F(PatchTableTest, OnAFullDiskAFileThatIsGoneIsForgottenAtTheNextOpening) {
  install_both();
  ASSERT_GT(rot_patch_files(at, test::Rot::gone), 0u);
  at.free_bytes = kRecordsFloorBytes - 1;
  at.open();
  EXPECT_TRUE(at.table->list().empty());
  at.free_bytes = 1ull << 40;
  EXPECT_THROW(at.db->write({{ColumnFamily::store, "other", "record"}}, Durability::power), Error)
      << "a family that is emptied while it is used would say that nothing changed";
  at.open();
  at.db->write({{ColumnFamily::store, "other", "record"}}, Durability::power);
  install_both();
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
  at.open();
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
  EXPECT_EQ(at.db->find(ColumnFamily::store, "other"), "record");
}

// It may answer later: so may a process that has no descriptor left.
TEST_F(PatchTableTest, ADiskThatDoesNotAnswerCostsNoPatches) {
  install_both();
  at.table.reset();
  at.db->before_read = [&] {
    at.db->before_read = {};
    throw Error(ErrorCode::io, "Input/output error");
  };
  EXPECT_THROW(PatchTable(*at.db, at.parent.path()), Error);
  at.open();
  EXPECT_EQ(at.patch_count(), 24u);
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
}

// The mount did not start.
TEST_F(PatchTableTest, OnAFullDiskAFileThatRottedIsRemovedWhenThereIsRoomAgain) {
  install_both();
  ASSERT_GT(rot_patch_files(at), 0u);
  at.free_bytes = kRecordsFloorBytes - 1;
  at.open();
  EXPECT_TRUE(at.table->list().empty());
  EXPECT_EQ(at.table->size_bytes(), 0u);
  at.free_bytes = 1ull << 40;
  at.open();
  EXPECT_TRUE(at.table->list().empty());
  EXPECT_EQ(at.patch_count(), 0u);
  install_both();
  at.open();
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
}

TEST_F(PatchTableTest, PatchesThatNoRecordNamesAreRemovedWhenItIsOpened) {
  install_both();
  const std::string all_ones(20, '\xFF');
  at.db->write({{ColumnFamily::patches, "", "x"},
                {ColumnFamily::patches, std::string(1, 0), "x"},
                {ColumnFamily::patches, "short", "x"},
                {ColumnFamily::patches, patch_key({PatchLevel::eight, 1, 2}, {0, 7}), "x"},
                {ColumnFamily::patches, patch_key({PatchLevel::one, 1, 1ull << 40}, {0, 7}), "x"},
                {ColumnFamily::patches, all_ones, "x"}},
               Durability::power);
  EXPECT_EQ(at.patch_count(), 30u);
  at.open();
  EXPECT_EQ(at.patch_count(), 24u);
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
}

// ---- a full disk ----

TEST_F(PatchTableTest, OnAFullDiskItReadsAndChangesNothing) {
  install_both();
  PatchFiles files = at.files_between({PatchLevel::one, 3, 4}, three, one);
  at.free_bytes = kRecordsFloorBytes - 1;
  const auto expect_full = [&](const std::function<void()>& change) {
    EXPECT_EQ(code_of(change), ErrorCode::no_space);
    EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
    EXPECT_EQ(at.table->list().size(), 2u);
  };
  expect_full([&] { at.table->install(ends_of(PatchLevel::one, 3, 4), std::move(files)); });
  expect_full([&] { at.table->remove({PatchLevel::one, 1, 2}); });
  expect_full([&] { at.install(ends_of(PatchLevel::one, 3, 4), three, one); });
  at.open();
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
}

TEST_F(PatchTableTest, AFullDiskWithLeftoversIsOpened) {
  install_both();
  const std::string stray = patch_key({PatchLevel::eight, 1, 2}, {0, 7});
  at.db->write({{ColumnFamily::patches, stray, "x"}}, Durability::power);
  at.free_bytes = kRecordsFloorBytes - 1;
  at.open();
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
  at.free_bytes = 1ull << 40;
  at.install(ends_of(PatchLevel::eight, 1, 2), one, two);  // of the name of what is left
  EXPECT_EQ(at.patch_count(), at.recorded_count());
}

// ---- readers beside changes ----

TEST_F(PatchTableTest, ASpanThatGoesWhileItIsReadIsNotFound) {
  install_both();
  const SpanInfo span = at.table->list().at(0);
  at.db->before_read = [&] {
    at.db->before_read = nullptr;
    at.table->remove(span.span());
  };
  EXPECT_EQ(code_of([&] { (void)at.table->read_page(span, {}, 1 << 20); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { (void)at.table->find_patch(span, {0, 0}); }), ErrorCode::not_found);
}

TEST_F(PatchTableTest, ASpanThatWentAndCameBackMeanwhileIsNotTakenForTheSame) {
  install_both();
  const SpanInfo span = at.table->list().at(0);
  PatchFiles again = at.files_between(span.span(), one, two);
  at.db->before_read = [&] {
    at.db->before_read = nullptr;
    at.table->remove(span.span());
    at.table->install(span.ends, std::move(again));
  };
  EXPECT_EQ(code_of([&] { (void)at.table->read_page(span, {}, 1 << 20); }), ErrorCode::not_found);
  EXPECT_EQ(at.rebuilt(one, path(1, 3)), three);
}

// ---- other releases ----

// As releases before 0.6.0 open a database: with the families that they know.
bool opens_in_an_older_release(const std::filesystem::path& directory) {
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const ColumnFamilyInfo& info : kColumnFamilies) {
    if (info.family != ColumnFamily::patches) {
      families.emplace_back(std::string(info.name), rocksdb::ColumnFamilyOptions());
    }
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(rocksdb::Options(), directory.string(), families, &handles, &db);
  if (!status.ok()) return false;
  for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
  delete db;
  return true;
}

TEST_F(PatchTableTest, AStoreWithoutPatchesOpensInOlderReleases) {
  at.open();
  at.table->remove({PatchLevel::one, 1, 2});
  at.table.reset();
  at.db.reset();
  EXPECT_TRUE(opens_in_an_older_release(at.parent / "db"));
  at.open();
  at.install(ends_of(PatchLevel::one, 1, 2), one, two);
  at.table.reset();
  at.db.reset();
  EXPECT_FALSE(opens_in_an_older_release(at.parent / "db"));  // it rebuilds the store
  at.open();
  EXPECT_EQ(at.rebuilt(one, path(1, 2)), two);
}

}  // namespace
}  // namespace weightfs
