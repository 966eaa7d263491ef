#include "store/sync/patch_recorder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/sync/base_writer.hpp"
#include "store/sync/sync.hpp"
#include "tests/store/sync/recorder_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"
#include "tests/support/store_patches.hpp"

namespace weightfs::test {
namespace {

using Versions = std::vector<std::uint64_t>;

/// A host whose images are in memory.
class PatchRecorderTest : public RecorderTest {
 protected:
  PatchRecorderTest() { is_in_memory_ = true; }
  void SetUp() override {
    try {
      const ImageMemory memory;
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  void publish(unsigned version, double share = 0.01, std::size_t more = 0) {
    RecorderTest::publish(version, share, more);
  }
  /// A host with version 1, the base, on the disk.
  void begin() {
    publish(1);
    open();
    sync_->run_once({});
    sync_->sync_images();
  }
  void bring(unsigned version, double share = 0.01, std::size_t more = 0) {
    publish(version, share, more);
    sync_->run_once({});
  }
  void bring_and_record(unsigned first, unsigned last, double share = 0.01) {
    for (unsigned version = first; version <= last; version++) {
      bring(version, share);
      EXPECT_TRUE(recorder_->record_if_due({})) << version;
    }
  }
  void wait_ready() {
    sync_->start();
    sync_->wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  }

  void expect_latest(unsigned version) {
    const auto catalog = sync_->catalog();
    ASSERT_EQ(catalog->latest, version);
    EXPECT_EQ(read_tree(catalog->versions.at(version)->directory), read_tree(checkpoint(version)));
  }
};

TEST_F(PatchRecorderTest, EachVersionIsRecordedOnce) {
  begin();
  EXPECT_FALSE(recorder_->record_if_due({})) << "the base is the newest";
  bring_and_record(2, 4);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector<PatchSpan>{one(1, 2), one(2, 3), one(3, 4)}));
  const PatchHistory history = recorder_->status();
  EXPECT_EQ(history.recorded, 4u);
  EXPECT_EQ(history.backlog, 0u);
  EXPECT_EQ(history.levels.at(0).spans, 3u);
  EXPECT_EQ(history.levels.at(0).first, 1u);
  EXPECT_EQ(history.levels.at(0).last, 4u);
  EXPECT_EQ(history.path_bytes, history.levels.at(0).bytes);
  EXPECT_EQ(history.written.taken_bytes, history.path_bytes);
}

TEST_F(PatchRecorderTest, ARestartMakesTheNewestVersionWithoutTheBucket) {
  begin();
  bring_and_record(2, 4);
  open_without_bucket();
  expect_latest(1);
  wait_ready();
  expect_latest(4);
  EXPECT_EQ(sync_->status().memory->versions, Versions{4});
  sync_->stop();
  EXPECT_FALSE(recorder_->record_if_due({}));
}

TEST_F(PatchRecorderTest, SmallFilesAreKept) {
  begin();
  const std::string first = config_;
  const std::string second = config_ = R"({"model_type":"test","step":2})";
  bring_and_record(2, 2);
  config_ = R"({"model_type":"test","step":3})";
  bring_and_record(3, 4);
  const auto kept = read_tree(dir_ / "reader" / "small");
  std::set<std::string> texts;
  for (const auto& [name, text] : kept) texts.insert(text);
  EXPECT_EQ(texts, (std::set{first, second, config_}));
  open_without_bucket();
  wait_ready();
  expect_latest(4);
  sync_->stop();

  // A damaged one is not believed, and is kept again when the bucket has given it.
  const auto newest = std::find_if(kept.begin(), kept.end(),
                                   [&](const auto& file) { return file.second == config_; });
  write_text(dir_ / "reader" / "small" / newest->first, "{}");
  open();
  wait_ready();
  EXPECT_TRUE(eventually([&] { return sync_->status().latest == 4; }));
  expect_latest(4);
  EXPECT_TRUE(eventually([&] { return read_tree(dir_ / "reader" / "small") == kept; }));
  open_without_bucket();
  wait_ready();
  expect_latest(4);
}

/// Those that a base had went with it.
TEST_F(PatchRecorderTest, VersionsBeforeARenewedBaseAreMadeWithoutTheBucket) {
  begin();
  bring_and_record(2, 3);
  config_ = R"({"model_type":"test","step":4})";
  bring_and_record(4, 5);
  BaseWriter writer(*reader_->store, reader_->history);
  unsigned version = 6;
  for (;; version++) {
    bring_and_record(version, version, 0.9);
    if (writer.write_if_due({})) break;
    ASSERT_LT(version, 12u);
  }
  ASSERT_EQ(sync_->status().memory->base, version);
  sync_->sync_images();
  bring_and_record(version + 1, version + 1);
  open_without_bucket();
  wait_ready();
  EXPECT_TRUE(materialize_from_patches(*reader_->store, reader_->history, 2, {}, {}));
  EXPECT_EQ(read_tree(reader_->store->images().image_directory(2)), read_tree(checkpoint(2)));
}

TEST_F(PatchRecorderTest, AfterARestartItGoesOn) {
  begin();
  bring_and_record(2, 4);
  open();
  wait_ready();
  sync_->stop();
  bring_and_record(5, 6);
  open_without_bucket();
  wait_ready();
  expect_latest(6);
}

TEST_F(PatchRecorderTest, WhatIsNotRecordedComesFromTheBucketAndTheRestDoesNot) {
  begin();
  bring_and_record(2, 4);
  bring(5);
  for (const auto& [key, bytes] : bucket_->objects()) {
    if (key.starts_with("packs/") && !key.starts_with("packs/5/")) bucket_->remove(key, {});
  }
  open();
  wait_ready();
  EXPECT_TRUE(eventually([&] { return sync_->status().latest == 5; }));
  expect_latest(5);
}

TEST_F(PatchRecorderTest, WithoutTheBucketARestartServesTheNewestVersionThatWasRecorded) {
  begin();
  config_ = R"({"model_type":"test","step":2})";
  bring_and_record(2, 4);
  bring(5);
  open_without_bucket();
  sync_->start();
  EXPECT_TRUE(eventually([&] { return sync_->status().latest == 4; }));
  expect_latest(4);
}

TEST_F(PatchRecorderTest, TheVersionThatTheNextPatchesAreTakenFromIsKept) {
  begin();
  bring_and_record(2, 2);
  bring(3);
  bring(4);
  EXPECT_EQ(sync_->status().memory->versions, (Versions{2, 3, 4}));
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector<PatchSpan>{one(1, 2), one(2, 3), one(3, 4)}));
  bring(5);
  EXPECT_EQ(sync_->status().memory->versions, (Versions{4, 5}));
}

TEST_F(PatchRecorderTest, ItIsKeptForABacklogOfTwoVersions) {
  begin();
  bring_and_record(2, 3);
  bring(4);
  bring(5);
  EXPECT_EQ(sync_->status().memory->versions, (Versions{3, 4, 5}));
  bring(6);
  EXPECT_EQ(sync_->status().memory->versions, (Versions{3, 5, 6}));
  bring(7);
  EXPECT_EQ(sync_->status().memory->versions, (Versions{6, 7}));
}

TEST_F(PatchRecorderTest, OneSpanCoversSeveralVersionsThatWereMissed) {
  begin();
  bring_and_record(2, 3);
  for (unsigned version = 4; version <= 6; version++) {
    bring(version);
    forget_noted(version - 1);
  }
  EXPECT_EQ(recorder_->status().backlog, 3u);
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans().back(), one(3, 6));
  open_without_bucket();
  wait_ready();
  expect_latest(6);
}

TEST_F(PatchRecorderTest, WhatWasNotedWhileAVersionWasMadeNeedsNoImages) {
  begin();
  bring_and_record(2, 3);
  bring(4);
  bring(5);
  ASSERT_TRUE(reader_->store->evictor().evict(4));
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector<PatchSpan>{one(1, 2), one(2, 3), one(3, 4), one(4, 5)}));
  EXPECT_EQ(recorder_->status().counted, (FreshCounters{4, 0, 0}));
  open_without_bucket();
  wait_ready();
  expect_latest(5);
}

TEST_F(PatchRecorderTest, BeyondTwoVersionsThatWaitImagesAreCompared) {
  begin();
  bring_and_record(2, 2);
  for (unsigned version = 3; version <= 5; version++) bring(version);
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans(), (std::vector<PatchSpan>{one(1, 2), one(2, 3), one(3, 4), one(4, 5)}));
  EXPECT_EQ(recorder_->status().counted, (FreshCounters{3, 1, 1}));
  bring_and_record(6, 6);
  EXPECT_EQ(recorder_->status().counted, (FreshCounters{4, 1, 1}));
  open_without_bucket();
  wait_ready();
  expect_latest(6);
}

TEST_F(PatchRecorderTest, ManyVersionsAreFolded) {
  begin();
  bring_and_record(2, 17);
  const PatchHistory history = recorder_->status();
  EXPECT_EQ(history.levels.at(1).spans, 2u);
  EXPECT_GT(history.written.folded_bytes, 0u);
  EXPECT_LT(history.path_bytes, history.levels.at(0).bytes);
  open_without_bucket();
  wait_ready();
  expect_latest(17);
}

TEST_F(PatchRecorderTest, WithoutAHistoryTheBaseStillLeadsToTheNewestVersion) {
  begin();
  recorder_.emplace(*reader_->store, reader_->history, PatchRecorderOptions{.history = 0});
  bring_and_record(2, 18);
  const PatchHistory history = recorder_->status();
  EXPECT_EQ(history.levels.at(0).spans, 2u);
  EXPECT_EQ(history.levels.at(1).spans, 2u);
  open_without_bucket();
  wait_ready();
  expect_latest(18);
}

TEST_F(PatchRecorderTest, NothingLeadsOverAChangeOfTheTensorTableAndTheBaseIsRenewed) {
  begin();
  bring_and_record(2, 2);
  bring(3, 0.01, 100);
  EXPECT_FALSE(recorder_->record_if_due({}));
  EXPECT_FALSE(recorder_->keeps(2));
  BaseWriter writer(*reader_->store, reader_->history);
  EXPECT_TRUE(writer.write_if_due({}));
  EXPECT_EQ(sync_->status().memory->base, 3u);
  bring(4, 0.01, 100);
  EXPECT_TRUE(recorder_->record_if_due({}));
  EXPECT_EQ(spans().back(), one(3, 4));
  open_without_bucket();
  wait_ready();
  expect_latest(4);
}

TEST_F(PatchRecorderTest, TheBaseStaysWhileThePatchesAreSmall) {
  begin();
  BaseWriter writer(*reader_->store, reader_->history);
  for (unsigned version = 2; version <= 70; version++) {
    bring(version, 0.002);
    EXPECT_TRUE(recorder_->record_if_due({}));
    ASSERT_FALSE(writer.write_if_due({})) << version;
  }
  EXPECT_EQ(sync_->status().memory->base, 1u);
  open_without_bucket();
  wait_ready();
  expect_latest(70);
}

TEST_F(PatchRecorderTest, TheBaseIsRenewedWhenPatchesAreMoreThanHalfOfTheModel) {
  begin();
  BaseWriter writer(*reader_->store, reader_->history);
  unsigned version = 2;
  for (;; version++) {
    bring(version, 0.9);
    EXPECT_TRUE(recorder_->record_if_due({}));
    if (writer.write_if_due({})) break;
    ASSERT_LT(version, 10u);
  }
  EXPECT_EQ(sync_->status().memory->base, version);
  EXPECT_FALSE(writer.write_if_due({}));
  EXPECT_EQ(recorder_->status().backlog, 0u);
}

TEST_F(PatchRecorderTest, ADamagedPatchIsLeftOutAndTheBucketIsAsked) {
  begin();
  bring_and_record(2, 4);
  damage_span(*reader_->store, one(2, 3));
  open();
  wait_ready();
  EXPECT_TRUE(eventually([&] { return sync_->status().latest == 4; }));
  expect_latest(4);
  sync_->stop();
  recorder_->record_if_due({});
  EXPECT_EQ(recorder_->status().recorded, 4u) << "taken anew from the base";
}

TEST_F(PatchRecorderTest, WithoutRoomNothingIsRecordedAndNothingIsKept) {
  begin();
  bring_and_record(2, 2);
  sync_.reset();
  recorder_.reset();
  reader_.reset();
  reader_.emplace(Repository::open(std::make_unique<BucketView>(bucket_), {}), dir_ / "reader",
                  StoreLimits{std::nullopt, 1ull << 60});
  reader_->store->use_memory([] { return std::optional<MemoryRoom>(); });
  sync_.emplace(*reader_->store, reader_->history, SyncOptions{});
  recorder_.emplace(*reader_->store, reader_->history);
  bring(3);
  EXPECT_EQ(code_of([&] { recorder_->record_if_due({}); }), ErrorCode::no_space);
  EXPECT_FALSE(recorder_->keeps(recorder_->status().recorded));
  EXPECT_TRUE(stdfs::is_empty(reader_->store->temporary_directory()));
}

TEST_F(PatchRecorderTest, TheThreadRecordsAfterTheFlip) {
  publish(1);
  open();
  recorder_.reset();
  sync_->start();
  EXPECT_TRUE(eventually([&] { return sync_->status().latest == 1; }));
  for (unsigned version = 2; version <= 20; version++) {
    publish(version);
    EXPECT_TRUE(eventually([&] { return sync_->status().latest == version; }));
    expect_latest(version);
  }
  EXPECT_TRUE(eventually([&] { return sync_->status().history.recorded == 20; }));
  EXPECT_EQ(sync_->status().history.error, "");
  open_without_bucket();
  wait_ready();
  expect_latest(20);
}

}  // namespace
}  // namespace weightfs::test
