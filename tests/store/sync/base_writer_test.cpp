#include "store/sync/base_writer.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/sync/base_renewal.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/random.hpp"
#include "tests/support/sync_watch.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;
using BaseNumbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kModel = 1000;
constexpr std::size_t kBaseElements = 50'000;

TEST(BaseRenewal, IsDueWhenPatchesAreMoreThanHalfOfTheModel) {
  EXPECT_FALSE(is_base_due({500, 0, 0}, kModel));
  EXPECT_TRUE(is_base_due({501, 0, 0}, kModel));
}

TEST(BaseRenewal, WithoutPatchesIsDueAfter64VersionsOrWhenDeltasAreAsLargeAsTheModel) {
  EXPECT_FALSE(is_base_due({0, 63, 999}, kModel));
  EXPECT_TRUE(is_base_due({0, 64, 0}, kModel));
  EXPECT_TRUE(is_base_due({0, 2, 1000}, kModel));
  EXPECT_FALSE(is_base_due({0, 1, 1000}, kModel)) << "patches of it will be taken";
  EXPECT_FALSE(is_base_due({0, 0, 1000}, kModel)) << "it is the newest";
}

TEST(BaseRenewal, WithoutPatchesTheDiskIsWrittenForATwentiethOfAOnePercentVersion) {
  SinceBase since;
  while (!is_base_due(since, kModel)) since = {0, since.versions + 1, since.delta_bytes + 10};
  EXPECT_LE(1.0 / static_cast<double>(since.versions), 0.02);
}

/// A host whose images are in memory.
class BaseWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      const ImageMemory memory;
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Weights that have nothing to do with those of the version before: two deltas are larger than
  /// the model.
  stdfs::path checkpoint(unsigned version) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    if (stdfs::exists(directory)) return directory;
    Random random(version);
    write_text(directory / "model.safetensors",
               make_safetensors({{"model.norm.weight",
                                  Dtype::bf16,
                                  {kBaseElements},
                                  random_bf16(kBaseElements, random)}}));
    return directory;
  }
  void publish(unsigned version) {
    ASSERT_EQ(publisher_.publish(checkpoint(version)).version, version);
  }
  void open() {
    sync_.reset();
    reader_.reset();
    reader_.emplace(bucket_, dir_ / "reader");
    reader_->store->use_memory([] { return std::optional<MemoryRoom>(); });
    SyncOptions options;
    options.follow.poll.interval = std::chrono::milliseconds(2);
    sync_.emplace(*reader_->store, reader_->history, std::move(options));
  }
  /// A host with version 1 on the disk, versions 2 and 3 in memory, and a base that is due.
  void begin() {
    publish(1);
    open();
    sync_->run_once({});
    sync_->sync_images();
    bring(2, 3);
  }
  void bring(unsigned first, unsigned last) {
    for (unsigned version = first; version <= last; version++) {
      publish(version);
      sync_->run_once({});
    }
  }
  [[nodiscard]] ImageTable& images() { return reader_->store->images(); }
  [[nodiscard]] MemoryStatus memory() const { return sync_->status().memory.value(); }
  void expect_latest(unsigned version) {
    const auto catalog = sync_->catalog();
    ASSERT_EQ(catalog->latest, version);
    EXPECT_EQ(read_tree(catalog->versions.at(version)->directory), read_tree(checkpoint(version)));
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host publisher_{bucket_, dir_ / "publisher"};
  std::optional<Host> reader_;
  std::optional<Sync> sync_;
};

TEST_F(BaseWriterTest, TheNewestVersionIsMadeAgainAfterARestart) {
  begin();
  expect_latest(3);
  EXPECT_EQ(memory().versions, (BaseNumbers{2, 3}));
  EXPECT_EQ(memory().base, 1u);
  open();
  expect_latest(1);
  sync_->start();
  sync_->wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  expect_latest(3);
  EXPECT_EQ(memory().versions, BaseNumbers{3});
}

TEST_F(BaseWriterTest, WithoutTheBucketARestartServesTheBase) {
  begin();
  sync_.reset();
  reader_.reset();
  reader_.emplace(
      Repository::assume("file://" + (dir_ / "no-bucket").string(), publisher_.repository->id()),
      dir_ / "reader");
  reader_->store->use_memory([] { return std::optional<MemoryRoom>(); });
  sync_.emplace(*reader_->store, reader_->history, SyncOptions{});
  sync_->start();
  sync_->wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  expect_latest(1);
}

TEST_F(BaseWriterTest, ABaseIsWrittenWhenItIsDueAndTheOlderOneGoes) {
  begin();
  BaseWriter writer(*reader_->store, reader_->history);
  EXPECT_TRUE(writer.write_if_due({}));
  EXPECT_EQ(images().versions_on_disk(), BaseNumbers{3});
  EXPECT_EQ(read_tree(dir_ / "reader" / "images" / "3"), read_tree(checkpoint(3)));
  EXPECT_TRUE(unsealed_files(dir_ / "reader" / "images" / "3").empty());
  EXPECT_TRUE(images().unsynced_versions().empty());
  EXPECT_FALSE(writer.write_if_due({}));

  // It leaves the memory when two more have come, and is read from the disk from then on.
  bring(4, 5);
  EXPECT_EQ(memory().versions, (BaseNumbers{4, 5}));
  const auto catalog = sync_->catalog();
  EXPECT_EQ(catalog->versions.at(3)->directory, dir_ / "reader" / "images" / "3");
  EXPECT_EQ(read_tree(catalog->versions.at(3)->directory), read_tree(checkpoint(3)));
  open();
  expect_latest(3);
}

// What is written in slices hears of an error in one of them, and of none at the end.
TEST_F(BaseWriterTest, WhatTheDiskDoesNotTakeBecomesNoBase) {
  begin();
  BaseWriter writer(*reader_->store, reader_->history);
  for (const int error : {EIO, ENOLINK}) {
    const SyncWatch watch("model.safetensors", error);
    EXPECT_EQ(code_of([&] { writer.write_if_due({}); }), ErrorCode::io) << error;
  }
  EXPECT_EQ(images().versions_on_disk(), BaseNumbers{1});
  EXPECT_TRUE(writer.write_if_due({}));
  EXPECT_EQ(images().versions_on_disk(), BaseNumbers{3});
}

TEST_F(BaseWriterTest, ABaseThatIsReadStaysUntilItIsNot) {
  begin();
  BaseWriter writer(*reader_->store, reader_->history);
  {
    const auto reading = reader_->store->eviction().reserve(1, Eviction::Claim::in_use, {});
    EXPECT_TRUE(writer.write_if_due({}));
    EXPECT_EQ(images().versions_on_disk(), (BaseNumbers{1, 3}));
  }
  bring(4, 5);
  EXPECT_TRUE(writer.write_if_due({}));
  EXPECT_EQ(images().versions_on_disk(), BaseNumbers{5});
}

TEST_F(BaseWriterTest, WithoutRoomOnTheDiskTheOldBaseStays) {
  begin();
  sync_.reset();
  reader_.reset();
  reader_.emplace(bucket_, dir_ / "reader", StoreLimits{1, 0});
  reader_->store->use_memory([] { return std::optional<MemoryRoom>(); });
  sync_.emplace(*reader_->store, reader_->history, SyncOptions{});
  sync_->run_once({});
  expect_latest(3);
  BaseWriter writer(*reader_->store, reader_->history);
  EXPECT_EQ(code_of([&] { writer.write_if_due({}); }), ErrorCode::no_space);
  EXPECT_EQ(images().base_version(), 1u);
  EXPECT_TRUE(stdfs::is_empty(reader_->store->temporary_directory()));
}

TEST_F(BaseWriterTest, ADamagedBaseIsReplacedByTheNewestVersion) {
  begin();
  ASSERT_TRUE(reader_->store->evictor().evict(1));
  EXPECT_EQ(images().base_version(), 0u);
  BaseWriter writer(*reader_->store, reader_->history);
  EXPECT_EQ(writer.renewals().count, 0u);
  EXPECT_TRUE(writer.write_if_due({}));
  EXPECT_EQ(writer.renewals().count, 1u);
  EXPECT_EQ(writer.renewals().last, 3u);
  EXPECT_EQ(images().base_version(), 3u);
}

TEST_F(BaseWriterTest, TheThreadWritesItAfterTheFlip) {
  publish(1);
  open();
  sync_->start();
  EXPECT_TRUE(eventually([&] { return sync_->status().latest == 1; }));
  for (unsigned version = 2; version <= 4; version++) {
    publish(version);
    EXPECT_TRUE(eventually([&] { return sync_->status().latest == version; }));
    expect_latest(version);
  }
  EXPECT_TRUE(eventually([&] { return memory().base > 1; }));
  EXPECT_TRUE(eventually([&] { return memory().renewals.last == memory().base; }));
}

}  // namespace
}  // namespace weightfs::test
