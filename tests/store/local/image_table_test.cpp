#include "store/local/image_table.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "store/base/error.hpp"
#include "store/local/sync_images.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using TableNumbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kTableSpace = 1ull << 40;

/// A table that can be opened again, as the next process would.
class ImageTableTest : public ::testing::Test {
 protected:
  ImageTableTest() {
    filesystem::create_directories(directory_ / "images");
    filesystem::create_directories(directory_ / "tmp");
    open();
  }

  void open() {
    table_.reset();
    db_.reset();
    db_ = Db::open(directory_ / "db", [this] { return free_bytes_; });
    table_ = std::make_unique<ImageTable>(*db_, directory_ / "images", directory_ / "tmp");
  }

  void add(std::uint64_t version) {
    const filesystem::path directory = table_->begin_images(version);
    test::write_text(directory / "a.bin", "12345");
    test::write_text(directory / "sub/b.bin", "123");
    test::seal_files(directory);
    table_->complete_images(version, TableNumbers{5, 3}, TableNumbers{version});
  }
  [[nodiscard]] filesystem::path file(std::uint64_t version) const {
    return table_->image_directory(version) / "sub/b.bin";
  }

  test::TempDir directory_;
  std::uint64_t free_bytes_ = kTableSpace;
  std::unique_ptr<Db> db_;
  std::unique_ptr<ImageTable> table_;
};

TEST_F(ImageTableTest, ANewVersionIsCompleteAndUnsynced) {
  add(1);
  EXPECT_TRUE(table_->is_complete(1));
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{1});
  EXPECT_TRUE(table_->unchecked_versions().empty());
}

TEST_F(ImageTableTest, WhatWasSyncedIsCompleteInTheNextProcess) {
  add(1);
  EXPECT_EQ(sync_images(*table_, 1), SyncedImages::synced);
  EXPECT_TRUE(table_->unsynced_versions().empty());
  open();
  EXPECT_TRUE(table_->is_complete(1));
  EXPECT_TRUE(table_->unsynced_versions().empty());
  EXPECT_TRUE(table_->unchecked_versions().empty());
}

TEST_F(ImageTableTest, WhatWasNotSyncedIsUncheckedInTheNextProcess) {
  add(1);
  add(2);
  sync_images(*table_, 2);
  open();
  EXPECT_EQ(table_->complete_versions(), TableNumbers{2});
  EXPECT_EQ(table_->unchecked_versions(), TableNumbers{1});
  EXPECT_EQ(table_->chunk_hashes(1), TableNumbers{1});
  EXPECT_TRUE(filesystem::exists(file(1)));
  table_->accept_unchecked(1);
  EXPECT_EQ(table_->complete_versions(), (TableNumbers{1, 2}));
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{1});
  open();
  EXPECT_EQ(table_->unchecked_versions(), TableNumbers{1}) << "accepted, but still not synced";
}

// A store was copied while its daemon made a version: a file first, half written, and the database
// when the version was synced.  Sizes and records were those of a whole one, which was shown.
TEST_F(ImageTableTest, ASyncedVersionWithAFileThatWasWrittenToIsUncheckedInTheNextProcess) {
  add(1);
  add(2);
  for (const std::uint64_t version : {1u, 2u}) sync_images(*table_, version);
  test::write_text(file(1), "12x");
  open();
  EXPECT_EQ(table_->complete_versions(), TableNumbers{2});
  EXPECT_EQ(table_->unchecked_versions(), TableNumbers{1});
  table_->accept_unchecked(1);
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{1});
}

// It was synced before; what the disk did not take later was another version's.
TEST_F(ImageTableTest, AMarkOfLossSaysNothingOfAVersionThatWasSyncedBefore) {
  add(1);
  sync_images(*table_, 1);
  test::mark_as_lost(file(1));
  open();
  EXPECT_EQ(table_->complete_versions(), TableNumbers{1});
}

TEST_F(ImageTableTest, AnUncheckedVersionCanBeRemovedAndMadeAnew) {
  add(1);
  add(2);
  open();
  table_->remove_images(1);
  EXPECT_FALSE(filesystem::exists(file(1)));
  add(2);
  EXPECT_TRUE(table_->unchecked_versions().empty());
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{2});
}

TEST_F(ImageTableTest, WhatWasSyncedBeforeItWasMadeAnewSaysNothingOfTheNewImages) {
  add(1);
  const std::uint64_t before = table_->generation(1);
  add(1);
  table_->mark_synced(1, before);
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{1});
  EXPECT_FALSE(table_->forget_images(1, before));
  EXPECT_TRUE(table_->is_complete(1));
  table_->mark_synced(1, table_->generation(1));
  EXPECT_TRUE(table_->unsynced_versions().empty());
}

TEST_F(ImageTableTest, FilesThatAreAddedMakeAVersionUnsyncedAgain) {
  add(1);
  sync_images(*table_, 1);
  table_->complete_images(1, TableNumbers{5, 3}, TableNumbers{1});
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{1});
}

TEST_F(ImageTableTest, AForgottenVersionIsGoneAndItsFilesStayForWhoReadsThem) {
  add(1);
  EXPECT_TRUE(table_->forget_images(1, table_->generation(1)));
  EXPECT_FALSE(table_->is_complete(1));
  EXPECT_TRUE(filesystem::exists(file(1)));
  EXPECT_EQ(sync_images(*table_, 1), SyncedImages::gone);
  open();
  EXPECT_TRUE(table_->unchecked_versions().empty());
  EXPECT_FALSE(filesystem::exists(file(1)));
}

// It stayed complete, and the next sync recorded it as synced.
TEST_F(ImageTableTest, AForgottenVersionIsGoneThoughThereIsNoMemoryToForgetIt) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new";
  add(1);
  const std::uint64_t generation = table_->generation(1);
  bool is_forgotten = false;
  {
    const test::NoMemory none;
    is_forgotten = table_->forget_images(1, generation);
  }
  EXPECT_TRUE(is_forgotten);
  EXPECT_FALSE(table_->is_complete(1));
  EXPECT_FALSE(table_->mark_synced(1, generation));
  open();
  EXPECT_EQ(table_->unchecked_versions(), TableNumbers{1});
}

// Nothing counts them, and it may be that nobody makes it again.
TEST_F(ImageTableTest, WhoAddsAVersionRemovesTheFilesOfThoseForgotten) {
  for (const std::uint64_t version : {1u, 2u, 3u}) {
    add(version);
    EXPECT_TRUE(table_->forget_images(version, table_->generation(version)));
  }
  table_->begin_images(1);
  add(2);
  EXPECT_TRUE(filesystem::exists(file(3)));
  { const ImagesLock lock = table_->lock_images({}); }
  EXPECT_TRUE(filesystem::exists(table_->image_directory(1)));
  EXPECT_TRUE(filesystem::exists(file(2)));
  EXPECT_FALSE(filesystem::exists(table_->image_directory(3)));
}

TEST_F(ImageTableTest, NothingIsWrittenUnderTheNamesOfARecordThatCannotBeForgotten) {
  add(1);
  sync_images(*table_, 1);
  free_bytes_ = 0;
  EXPECT_EQ(test::code_of([&] { table_->begin_images(1); }), ErrorCode::no_space);
  EXPECT_TRUE(table_->is_complete(1));
  EXPECT_EQ(test::read_text(file(1)), "123");
}

TEST_F(ImageTableTest, AVersionThatCannotBeRecordedAsSyncedIsOnTheDiskAllTheSame) {
  add(1);
  free_bytes_ = 0;
  EXPECT_EQ(sync_images(*table_, 1), SyncedImages::unrecorded);
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{1});
  free_bytes_ = kTableSpace;
  EXPECT_EQ(sync_images(*table_, 1), SyncedImages::synced);
}

TEST_F(ImageTableTest, SyncingStopsBetweenSlices) {
  add(1);
  EXPECT_EQ(sync_images(*table_, 1, [] { return true; }), SyncedImages::stopped);
  EXPECT_EQ(table_->unsynced_versions(), TableNumbers{1});
}

/// As sync_images() marks what the disk did not take: it is told only once.
TEST_F(ImageTableTest, AFileThatTheDiskDidNotTakeIsLostForEveryVersionThatHasIt) {
  add(1);
  const filesystem::path directory = table_->begin_images(2);
  filesystem::create_directories(directory / "sub");
  filesystem::create_hard_link(file(1), directory / "sub/b.bin");
  test::write_text(directory / "a.bin", "54321");
  table_->complete_images(2, TableNumbers{5, 3}, TableNumbers{2});
  struct stat found {};
  ASSERT_EQ(::stat(file(1).c_str(), &found), 0);
  const timespec times[2] = {found.st_atim, {found.st_mtim.tv_sec, 1}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file(1).c_str(), times, 0), 0);
  for (const std::uint64_t version : {1u, 2u}) {
    EXPECT_EQ(test::code_of([&] { sync_images(*table_, version); }), ErrorCode::io);
  }
  EXPECT_EQ(table_->unsynced_versions(), (TableNumbers{1, 2}));
}

}  // namespace
}  // namespace weightfs
