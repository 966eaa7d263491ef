#include "store/sync/image_syncer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/sync/sync.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;
using SyncedNumbers = std::vector<std::uint64_t>;

stdfs::path some_weights(const stdfs::path& directory) {
  for (const auto& entry : stdfs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") return entry.path();
  }
  ADD_FAILURE() << "no weights in " << directory;
  return {};
}

class ImageSyncerTest : public testing::Test {
 protected:
  void publish(unsigned version) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    write_checkpoint(directory, version, 50'000);
    ASSERT_EQ(publisher_.publish(directory).version, version);
  }
  void open(bool partial) {
    sync_.reset();
    reader_.reset();
    reader_.emplace(bucket_, dir_ / "reader");
    SyncOptions options;
    options.follow.poll.interval = std::chrono::milliseconds(2);
    options.partial = partial;
    sync_.emplace(*reader_->store, reader_->history, std::move(options));
  }
  [[nodiscard]] ImageTable& images() { return reader_->store->images(); }
  void expect_latest(unsigned version) {
    const auto catalog = sync_->catalog();
    ASSERT_EQ(catalog->latest, version);
    ASSERT_TRUE(catalog->versions.contains(version));
    EXPECT_EQ(read_tree(catalog->versions.at(version)->directory),
              read_tree(dir_ / ("checkpoint-" + std::to_string(version))));
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host publisher_{bucket_, dir_ / "publisher"};
  std::optional<Host> reader_;
  std::optional<Sync> sync_;
};

TEST_F(ImageSyncerTest, AVersionIsShownBeforeItIsSynced) {
  publish(1);
  open(false);
  sync_->run_once({});
  expect_latest(1);
  EXPECT_EQ(sync_->status().unsynced, SyncedNumbers{1});
  sync_->sync_images();
  EXPECT_TRUE(sync_->status().unsynced.empty());
}

TEST_F(ImageSyncerTest, TheThreadSyncsWhatArrives) {
  publish(1);
  open(true);
  sync_->start();
  for (unsigned version = 1; version <= 3; version++) {
    if (version > 1) publish(version);
    EXPECT_TRUE(eventually([&] {
      const SyncStatus status = sync_->status();
      return status.latest == version && status.unsynced.empty() &&
             reader_->store->images().is_complete(version);
    }));
  }
  const SyncedNumbers kept = {2, 3};  // once there is room for the next
  EXPECT_TRUE(eventually([&] { return images().complete_versions() == kept; }));
  open(true);
  EXPECT_EQ(images().complete_versions(), kept);
  EXPECT_TRUE(sync_->status().unsynced.empty());
}

TEST_F(ImageSyncerTest, WhatWasNotSyncedWhenTheHostStoppedIsCheckedAndShownAtOnce) {
  publish(1);
  publish(2);
  open(false);
  sync_->run_once({});
  open(false);
  expect_latest(2);
  EXPECT_EQ(sync_->status().unsynced, SyncedNumbers{2});
  sync_->sync_images();
  EXPECT_TRUE(sync_->status().unsynced.empty());
}

// Of a large model that takes minutes, in which `mount` said that it waits for the bucket.
TEST_F(ImageSyncerTest, SaysThatItChecksWhatWasNotSynced) {
  publish(1);
  open(false);
  sync_->run_once({});
  sync_.reset();
  reader_.reset();
  reader_.emplace(bucket_, dir_ / "reader");
  std::atomic<std::uint64_t> checked = 0, others = 0;
  SyncOptions options;
  options.checking_progress = [&](std::string_view phase, std::uint64_t done, std::uint64_t) {
    if (phase == "checking") checked = std::max<std::uint64_t>(checked, done);
    if (phase != "checking") others++;
  };
  sync_.emplace(*reader_->store, reader_->history, std::move(options));
  EXPECT_GT(checked, 0u);
  EXPECT_EQ(others, 0u);
}

TEST_F(ImageSyncerTest, AVersionThatTheDiskDidNotTakeIsHiddenAndRebuilt) {
  for (const bool partial : {false, true}) {
    publish(partial ? 3 : 1);
    publish(partial ? 4 : 2);
    const unsigned version = partial ? 4 : 2;
    open(partial);
    sync_->run_once({});
    if (partial) {
      EXPECT_TRUE(eventually([&] { return reader_->store->images().is_complete(version); }));
    }
    mark_as_lost(some_weights(images().image_directory(version)));
    std::atomic<int> told = 0;
    const auto listening = sync_->listen({.changed = [&] { told++; }});
    sync_->sync_images();
    EXPECT_GT(told, 0);
    EXPECT_FALSE(sync_->catalog()->versions.contains(version));
    EXPECT_FALSE(stdfs::exists(images().image_directory(version)));
    const SyncStatus status = sync_->status();
    EXPECT_EQ(status.lost, 1u);
    EXPECT_EQ(status.error_code, "io");
    EXPECT_NE(status.error.find("the disk did not take"), std::string::npos) << status.error;
    sync_->run_once({});
    expect_latest(version);
    EXPECT_EQ(sync_->status().error, "");
    sync_->sync_images();
    EXPECT_TRUE(sync_->status().unsynced.empty());
  }
}

TEST_F(ImageSyncerTest, TheThreadRebuildsWhatItLost) {
  publish(1);
  open(true);
  sync_->run_once({});
  EXPECT_TRUE(eventually([&] { return reader_->store->images().is_complete(1); }));
  mark_as_lost(some_weights(images().image_directory(1)));
  sync_->start();
  EXPECT_TRUE(eventually([&] {
    const SyncStatus status = sync_->status();
    return status.lost == 1 && status.unsynced.empty() && reader_->store->images().is_complete(1) &&
           status.state == SyncStatus::State::current;
  }));
  expect_latest(1);
}

TEST_F(ImageSyncerTest, AVersionThatIsBeingEvictedIsNotSynced) {
  publish(1);
  publish(2);
  open(false);
  sync_->run_once({});
  publish(3);
  sync_->run_once({});
  EXPECT_EQ(sync_->status().unsynced, (SyncedNumbers{2, 3}));
  EXPECT_TRUE(reader_->store->evictor().evict(2));
  sync_->sync_images();
  EXPECT_TRUE(sync_->status().unsynced.empty());
  EXPECT_EQ(images().complete_versions(), SyncedNumbers{3});
}

TEST_F(ImageSyncerTest, AVersionThatStaysAfterAllIsSyncedLater) {
  publish(1);
  open(false);
  sync_->run_once({});
  ImageSyncer syncer(*reader_->store, {});
  syncer.wake();
  EXPECT_TRUE(syncer.withdraw(1));
  syncer.sync_all();
  EXPECT_EQ(images().unsynced_versions(), SyncedNumbers{1});
  syncer.restore(1);
  syncer.sync_all();
  EXPECT_TRUE(images().unsynced_versions().empty());
}

}  // namespace
}  // namespace weightfs::test
