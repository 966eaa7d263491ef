// Sync: how long versions took, which is recorded once they are shown.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "store/base/error.hpp"
#include "store/sync/sync.hpp"
#include "store/sync/version_watches.hpp"
#include "tests/store/sync/sync_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {
namespace {

TEST_F(SyncTest, RecordsHowAVersionCame) {
  const auto on = reader();
  publish(1);
  on->sync.run_once({});
  const auto before = std::chrono::system_clock::now();
  for (unsigned version = 2; version <= 4; version++) publish(version);
  on->sync.run_once({});
  const auto after = std::chrono::system_clock::now();

  const auto record = on->host.store->timings().find(4);
  ASSERT_TRUE(record && record->brought);
  const VersionTiming& timing = *record->brought;
  EXPECT_EQ(timing.base, 1u);
  EXPECT_EQ(timing.snapshot, 0u);
  EXPECT_EQ(timing.deltas, 3u);
  EXPECT_FALSE(timing.is_streamed);
  EXPECT_EQ(timing.attempts, 1u);
  const auto seen = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(timing.seen_ns)));
  EXPECT_GE(seen, before);
  EXPECT_LE(seen + timing.total(), after + milliseconds(1));
  ASSERT_TRUE(timing.unseen);
  EXPECT_GT(*timing.unseen, milliseconds(0));

  // Its packs were fetched, and what is not linked was written.
  std::uint64_t packs = 0;
  for (std::uint64_t version = 2; version <= 4; version++) {
    const auto published = on->host.history.get(version, {});
    const auto layout = on->host.history.layout(*published, {});
    for (const PackRef& pack : published->manifest.delta->packs) {
      packs +=
          on->host.repository->get_pack_index(keys::pack(version, pack.name), pack, *layout, {})
              ->data_size_bytes();
    }
  }
  std::uint64_t blobs = 0;  // small files that are not those of version 1
  const std::vector<BlobRef> had = on->host.history.get(1, {})->manifest.blobs;
  for (const BlobRef& blob : on->host.history.get(4, {})->manifest.blobs) {
    const bool is_here = std::any_of(had.begin(), had.end(), [&](const BlobRef& old) {
      return old.path == blob.path && old.sha256 == blob.sha256;
    });
    if (!is_here) blobs += blob.size_bytes;
  }
  EXPECT_GT(packs, 0u);
  EXPECT_EQ(timing.work.fetched_bytes, packs + blobs);
  EXPECT_GT(timing.work.requests, 0u);
  EXPECT_GT(timing.work.fetch, milliseconds(0));
  EXPECT_GT(timing.work.decode, milliseconds(0));
  EXPECT_LE(timing.work.written_bytes, timing.bytes);
  EXPECT_GT(timing.work.written_bytes, 0u);
  EXPECT_GE(timing.build, timing.work.fetch);
  EXPECT_EQ(timing.sync, std::nullopt);  // nothing was synced yet
  EXPECT_EQ(on->host.store->timings().find(2), std::nullopt);
  on->sync.sync_images();
  EXPECT_GT(on->host.store->timings().find(4)->brought->sync, milliseconds(0));
}

TEST_F(SyncTest, RecordsThatAColdHostFetchedASnapshot) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  const auto record = on->host.store->timings().find(1);
  ASSERT_TRUE(record && record->brought);
  EXPECT_EQ(record->brought->snapshot, 1u);
  EXPECT_EQ(record->brought->base, 0u);
  EXPECT_EQ(record->brought->deltas, 0u);
  EXPECT_EQ(record->brought->unseen, std::nullopt);
  EXPECT_GE(record->brought->work.fetched_bytes, record->brought->bytes / 2);
  EXPECT_EQ(record->brought->work.written_bytes, record->brought->bytes);
}

// Of a way that was left nothing is said.
TEST_F(SyncTest, RecordsTheWayThatWasTakenWhereTheBaseWasDamaged) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  const auto images = on->host.store->images().image_directory(1);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(images)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string bytes = read_text(entry.path());
    std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end(), 'x');
    std::filesystem::remove(entry.path());
    write_text(entry.path(), bytes);
  }
  publish(2);
  on->sync.run_once({});
  const auto record = on->host.store->timings().find(2);
  ASSERT_TRUE(record && record->brought);
  EXPECT_EQ(record->brought->base, 0u);
  EXPECT_EQ(record->brought->snapshot, 1u);
  EXPECT_EQ(record->brought->deltas, 1u);
}

TEST_F(SyncTest, CountsTheAttemptsAndTheWaitAfterAFailure) {
  const auto on = reader();
  publish(1);
  on->sync.run_once({});
  publish(2);
  const auto mend = spoil(pack_of(2));
  EXPECT_EQ(round_error(*on).code(), ErrorCode::corrupt);
  EXPECT_EQ(on->host.store->timings().find(2), std::nullopt);
  EXPECT_EQ(round_error(*on).code(), ErrorCode::corrupt);
  mend();
  on->sync.run_once({});
  const auto record = on->host.store->timings().find(2);
  ASSERT_TRUE(record && record->brought);
  EXPECT_EQ(record->brought->attempts, 3u);
  EXPECT_GT(record->brought->wait, milliseconds(0));
}

TEST_F(SyncTest, WhatIsHereAfterARestartKeepsItsTiming) {
  publish(1);
  reader()->sync.run_once({});
  const auto on = reader();
  const auto before = on->host.store->timings().find(1);
  ASSERT_TRUE(before);
  on->sync.run_once({});
  EXPECT_EQ(on->host.store->timings().find(1), before);
}

TEST_F(SyncTest, RecordsAVersionThatWasShownBeforeItWasFilled) {
  publish(1);
  publish(2);
  const auto gate = std::make_shared<GatedBucket::Gate>();
  gate->stops = is_snapshot_data;
  SyncOptions options = often();
  options.partial = true;
  const auto on = gated_reader(gate, options);
  on->sync.start();
  ASSERT_TRUE(eventually([&] { return on->sync.catalog()->latest == 2; }));
  EXPECT_EQ(on->host.store->timings().find(2), std::nullopt);
  gate->open();
  ASSERT_TRUE(eventually([&] { return on->host.store->timings().find(2).has_value(); }));
  const VersionTiming timing = on->host.store->timings().find(2)->brought.value();
  EXPECT_TRUE(timing.is_streamed);
  EXPECT_EQ(timing.snapshot, 1u);
  EXPECT_EQ(timing.deltas, 1u);
  EXPECT_GT(timing.build, milliseconds(0));
  EXPECT_GT(timing.work.fetched_bytes, 0u);
  EXPECT_EQ(timing.work.written_bytes, timing.bytes);
  EXPECT_TRUE(
      eventually([&] { return on->host.store->timings().find(2)->brought->sync.has_value(); }));
}

TEST_F(SyncTest, TellsSinceWhenAVersionIsThatItDoesNotShow) {
  publish(1);
  const auto on = reader();
  on->sync.run_once({});
  EXPECT_EQ(on->sync.status().behind_since, 0);
  EXPECT_EQ(on->sync.status().lag_seconds(seconds_now() + 100), 0);
  publish(2);
  const auto mend = spoil(pack_of(2));
  const std::int64_t before = seconds_now();
  EXPECT_NE(round_error(*on).what(), std::string());
  const SyncStatus status = on->sync.status();
  EXPECT_GE(status.behind_since, before - 1);
  EXPECT_LE(status.behind_since, seconds_now());
  EXPECT_EQ(status.lag_versions(), 1u);
  EXPECT_EQ(status.lag_seconds(status.behind_since + 100), 100);
}

// It was found by the first poll, so its publisher's clock counts; not that of later ones.
TEST_F(SyncTest, ARestartDoesNotMakeAHostLessLate) {
  publish(1);
  const auto on = reader();
  VersionWatches watches(*on->host.store);
  watches.note_poll(Clock::now(), 2);
  watches.note_latest(1, 1000);
  watches.note_poll(Clock::now(), 3);
  watches.note_latest(1, 2000);
  const auto behind = watches.find_behind(1);
  ASSERT_TRUE(behind);
  EXPECT_FALSE(behind->is_exact);
  EXPECT_EQ(behind->published, 1000);
}

// A host that is stuck was never late where versions came faster than --max-lag.
TEST_F(SyncTest, LaterVersionsDoNotMakeAHostLessLate) {
  publish(1);
  const auto on = reader();
  VersionWatches watches(*on->host.store);
  watches.note_poll(Clock::now(), 1);
  const auto first = watches.find_behind(0);
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->is_exact);
  watches.note_latest(1, 900);
  EXPECT_FALSE(watches.find_behind(1));
  watches.note_poll(Clock::now(), 2);
  const auto since = watches.find_behind(1);
  ASSERT_TRUE(since);
  EXPECT_TRUE(since->is_exact);
  for (std::uint64_t newest = 2; newest < 3 * VersionWatches::kWatchesMax; newest++) {
    watches.note_poll(Clock::now(), newest);
    watches.note_latest(1, 1000);
  }
  EXPECT_EQ(watches.find_behind(1)->since, since->since);
  watches.note_latest(150, 1000);
  EXPECT_GT(watches.find_behind(150)->since, since->since);
}

}  // namespace
}  // namespace weightfs::test
