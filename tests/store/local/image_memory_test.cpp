#include "store/local/image_memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/local/early_images.hpp"
#include "store/local/store.hpp"
#include "store/local/sync_images.hpp"
#include "store/os/file.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/few_descriptors.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using MemoryNumbers = std::vector<std::uint64_t>;

constexpr std::string_view kMemoryStoreId = "0123456789abcdef0123456789abcdef";
constexpr std::uint64_t kMemoryPlenty = 1ull << 40;

/// A store that keeps images in memory, and can be opened again as the next process would.
class ImageMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      const ImageMemory memory;
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    open();
  }

  void open() {
    store_.reset();
    store_ = Store::open(directory_ / "store", kMemoryStoreId, "file:///bucket", limits_, [this] {
      return Space{free_bytes_, 2 * kMemoryPlenty};
    });
    store_->use_memory([this] { return MemoryRoom{room_, room_, "/engine"}; });
  }

  void write(const filesystem::path& directory, std::size_t bytes) {
    test::write_text(directory / "a.bin", std::string(bytes - 3, 'a'));
    test::write_text(directory / "sub/b.bin", "123");
    test::seal_files(directory);
  }
  /// As materialize() does.
  void add(std::uint64_t version, std::size_t bytes = 1000) {
    const ImagesHome home = images().home_of_next();
    if (home == ImagesHome::memory) store_->evictor().evict_for_memory(bytes);
    write(images().begin_images(version, home), bytes);
    images().complete_images(version, MemoryNumbers{bytes - 3, 3}, MemoryNumbers{version});
    sync_images(images(), version);
  }
  /// A file of version 2, of which nothing is known yet.
  void make_early(std::uint64_t bytes) {
    const filesystem::path temporary = images().temporary_of(ImagesHome::memory);
    auto pass = store_->early_images().begin({2, {}}, ImagesHome::memory, temporary, {});
    ASSERT_TRUE(pass);
    EarlyImage image;
    image.file = pass->directory() / "a.bin";
    image.size_bytes = image.made_bytes = bytes;
    const File file = File::open(image.file, O_RDWR | O_CREAT);
    ASSERT_EQ(::fallocate(file.fd(), 0, 0, static_cast<off_t>(bytes)), 0);
    pass->add("a.bin", std::move(image));
  }
  bool keep_on_disk(std::uint64_t version, std::size_t bytes = 1000) {
    const filesystem::path copy = store_->temporary_directory() / "copy";
    write(copy, bytes);
    return images().keep_on_disk(version, images().generation(version), copy);
  }
  [[nodiscard]] filesystem::path on_disk(std::uint64_t version) const {
    return store_->path() / "images" / std::to_string(version);
  }
  [[nodiscard]] ImageTable& images() { return store_->images(); }

  test::TempDir directory_;
  StoreLimits limits_;
  std::uint64_t room_ = kMemoryPlenty;
  std::atomic<std::uint64_t> free_bytes_ = kMemoryPlenty;  // on the disk
  std::unique_ptr<Store> store_;
};

TEST_F(ImageMemoryTest, ItIsOneFileSystemOfThisProcessWithALimit) {
  const ImageMemory memory;
  struct stat images {
  }, temporary{}, here{};
  ASSERT_EQ(::stat(memory.images().c_str(), &images), 0);
  ASSERT_EQ(::stat(memory.temporary().c_str(), &temporary), 0);
  ASSERT_EQ(::stat("/", &here), 0);
  EXPECT_EQ(images.st_dev, temporary.st_dev);
  EXPECT_NE(images.st_dev, here.st_dev);

  constexpr off_t kFileBytes = 256 << 20;
  const filesystem::path path = memory.images() / "a.bin";
  const File file = File::open(path, O_RDWR | O_CREAT);
  EXPECT_NE(::fallocate(file.fd(), 0, 0, kFileBytes), 0);
  EXPECT_EQ(errno, ENOSPC);
  memory.set_limit(kFileBytes);
  EXPECT_EQ(::fallocate(file.fd(), 0, 0, kFileBytes), 0);
  memory.set_limit(0);  // less than there is: nothing changes
  EXPECT_EQ(filesystem::file_size(path), static_cast<std::uintmax_t>(kFileBytes));
}

// The kernel refused all of them after it had refused one, and the host stopped following.
TEST_F(ImageMemoryTest, ALimitThatIsTooLowDoesNotEndTheNextOnes) {
  constexpr off_t kFileBytes = 128 << 20;
  const ImageMemory memory;
  memory.set_limit(kFileBytes);
  const File file = File::open(memory.images() / "a.bin", O_RDWR | O_CREAT);
  ASSERT_EQ(::fallocate(file.fd(), 0, 0, kFileBytes), 0);
  memory.set_limit(0);
  EXPECT_NE(::fallocate(file.fd(), 0, 0, 3 * kFileBytes), 0);
  memory.set_limit(3 * kFileBytes);
  EXPECT_EQ(::fallocate(file.fd(), 0, 0, 3 * kFileBytes), 0);
}

TEST_F(ImageMemoryTest, WhatCannotBeMeasuredIsNoLimitThatIsTooLow) {
  add(1);
  add(2);
  const test::FewDescriptors none;
  EXPECT_EQ(test::code_of([&] { static_cast<void>(images().memory_bytes()); }), ErrorCode::io);
  EXPECT_EQ(test::code_of([&] { store_->evictor().admit_delta_to_memory(1); }), ErrorCode::io);
}

TEST_F(ImageMemoryTest, TheFirstVersionIsOnTheDiskAndTheNextOnesAreNot) {
  add(1);
  add(2);
  EXPECT_EQ(images().image_directory(1), on_disk(1));
  EXPECT_EQ(images().home_of(2), ImagesHome::memory);
  EXPECT_FALSE(filesystem::exists(on_disk(2)));
  EXPECT_TRUE(filesystem::exists(images().image_directory(2) / "sub/b.bin"));
  EXPECT_EQ(images().complete_versions(), (MemoryNumbers{1, 2}));
  EXPECT_TRUE(images().unsynced_versions().empty());
  EXPECT_EQ(images().chunk_hashes(2), MemoryNumbers{2});
  EXPECT_EQ(images().image_bytes(), 1000u);
  EXPECT_EQ(images().memory_bytes(), 1000u);
}

TEST_F(ImageMemoryTest, TheNextProcessKnowsNothingOfWhatWasInMemory) {
  add(1);
  add(2);
  open();
  EXPECT_EQ(images().complete_versions(), MemoryNumbers{1});
  EXPECT_TRUE(images().unchecked_versions().empty());
  EXPECT_EQ(test::code_of([&] { static_cast<void>(images().chunk_hashes(2)); }),
            ErrorCode::not_found);
  EXPECT_EQ(images().base_version(), 1u);
}

TEST_F(ImageMemoryTest, ACopyOnTheDiskIsSyncedAndSurvives) {
  add(1);
  add(2);
  ASSERT_TRUE(keep_on_disk(2));
  EXPECT_EQ(images().versions_on_disk(), (MemoryNumbers{1, 2}));
  EXPECT_EQ(images().versions_in_memory(), MemoryNumbers{2});
  EXPECT_EQ(images().base_version(), 2u);
  EXPECT_FALSE(keep_on_disk(2)) << "it is there";
  open();
  EXPECT_EQ(images().complete_versions(), (MemoryNumbers{1, 2}));
  EXPECT_TRUE(images().unchecked_versions().empty());
  EXPECT_EQ(images().chunk_hashes(2), MemoryNumbers{2});
}

TEST_F(ImageMemoryTest, ACopyOfImagesThatAreGoneIsNotTaken) {
  add(1);
  add(2);
  const std::uint64_t generation = images().generation(2);
  images().remove_images(2);
  add(2);
  const filesystem::path copy = store_->temporary_directory() / "copy";
  write(copy, 1000);
  EXPECT_FALSE(images().keep_on_disk(2, generation, copy));
  EXPECT_FALSE(filesystem::exists(on_disk(2)));
}

TEST_F(ImageMemoryTest, WhatLeavesTheMemoryIsReadFromItsCopy) {
  add(1);
  add(2);
  ASSERT_TRUE(keep_on_disk(2));
  const filesystem::path before = images().image_directory(2);
  EXPECT_TRUE(store_->evictor().evict(2));
  EXPECT_TRUE(images().is_complete(2));
  EXPECT_EQ(images().image_directory(2), on_disk(2));
  EXPECT_FALSE(filesystem::exists(before));
  EXPECT_EQ(images().memory_bytes(), 0u);
  EXPECT_EQ(images().chunk_hashes(2), MemoryNumbers{2});
}

TEST_F(ImageMemoryTest, ACopyCanGoAndTheVersionStaysInMemory) {
  add(1);
  add(2);
  ASSERT_TRUE(keep_on_disk(2));
  images().remove_copy(2);
  EXPECT_FALSE(filesystem::exists(on_disk(2)));
  EXPECT_TRUE(filesystem::exists(images().image_directory(2) / "a.bin"));
  EXPECT_EQ(images().base_version(), 1u);
  open();
  EXPECT_EQ(images().complete_versions(), MemoryNumbers{1});
}

TEST_F(ImageMemoryTest, ACopyThatCannotBeRecordedLeavesNothing) {
  add(1);
  add(2);
  free_bytes_ = 0;
  EXPECT_EQ(test::code_of([&] { keep_on_disk(2); }), ErrorCode::no_space);
  EXPECT_FALSE(filesystem::exists(on_disk(2))) << "nobody would count it";
  EXPECT_EQ(images().versions_on_disk(), MemoryNumbers{1});
  free_bytes_ = kMemoryPlenty;
  EXPECT_TRUE(keep_on_disk(2));
}

TEST_F(ImageMemoryTest, ACopyGoesAlsoOnAFullDisk) {
  add(1);
  add(2);
  ASSERT_TRUE(keep_on_disk(2));
  free_bytes_ = 0;
  images().remove_copy(2);
  EXPECT_FALSE(filesystem::exists(on_disk(2)));
  EXPECT_EQ(images().versions_on_disk(), MemoryNumbers{1});
  EXPECT_EQ(images().versions_in_memory(), MemoryNumbers{2});
  free_bytes_ = kMemoryPlenty;
  open();
  EXPECT_EQ(images().complete_versions(), MemoryNumbers{1}) << "its record counts for nothing";
}

TEST_F(ImageMemoryTest, AVersionBegunInMemoryLeavesNothingWhenItFails) {
  add(1);
  write(images().begin_images(2, ImagesHome::memory), 1000);
  const filesystem::path directory = images().image_directory(2);
  images().remove_images(2);
  EXPECT_FALSE(filesystem::exists(directory));
  EXPECT_EQ(images().home_of(2), ImagesHome::disk);
  EXPECT_FALSE(images().is_complete(2));
}

TEST_F(ImageMemoryTest, TheOldestUnusedVersionGoesBeforeTheNextIsWritten) {
  for (std::uint64_t version = 1; version <= 3; version++) add(version);
  EXPECT_EQ(images().versions_in_memory(), (MemoryNumbers{2, 3}));
  store_->evictor().evict_for_memory(1000);
  EXPECT_EQ(images().versions_in_memory(), MemoryNumbers{3});
}

TEST_F(ImageMemoryTest, WhatIsReadStaysBesidesTwoVersions) {
  for (std::uint64_t version = 1; version <= 2; version++) add(version);
  {
    const std::ifstream reader(images().image_directory(2) / "a.bin");
    for (std::uint64_t version = 3; version <= 5; version++) add(version);
    EXPECT_EQ(images().versions_in_memory(), (MemoryNumbers{2, 4, 5}));
  }
  add(6);
  EXPECT_EQ(images().versions_in_memory(), (MemoryNumbers{5, 6}));
}

TEST_F(ImageMemoryTest, WithoutMemoryForTheNextVersionNothingIsBegun) {
  add(1);
  add(2);
  room_ = 999;
  std::string message;
  EXPECT_EQ(test::code_of([&] { store_->evictor().evict_for_memory(1000); }, &message),
            ErrorCode::no_space);
  EXPECT_NE(message.find("the limit of cgroup /engine"), std::string::npos) << message;
  EXPECT_NE(message.find("mount without --images memory"), std::string::npos) << message;
}

TEST_F(ImageMemoryTest, WhatWasMadeEarlyGoesForADeltaThatHasNoRoom) {
  add(1);
  make_early(1000);
  store_->evictor().admit_delta_to_memory(100);
  EXPECT_EQ(store_->early_images().size_bytes(), 1000u) << "there is room";
  room_ = 99;
  EXPECT_EQ(test::code_of([&] { store_->evictor().admit_delta_to_memory(100); }),
            ErrorCode::no_space);
  EXPECT_EQ(store_->early_images().size_bytes(), 0u);
}

TEST_F(ImageMemoryTest, ADeltaHasItsRoomBesideWhatWasMadeEarly) {
  constexpr std::uint64_t kEarlyBytes = 100 << 20, kDeltaBytes = 150 << 20;
  add(1);
  store_->evictor().evict_for_memory(kEarlyBytes);
  make_early(kEarlyBytes);
  store_->evictor().admit_delta_to_memory(kDeltaBytes);
  const filesystem::path delta = images().temporary_of(ImagesHome::memory) / "delta";
  const File file = File::open(delta, O_RDWR | O_CREAT);
  EXPECT_EQ(::fallocate(file.fd(), 0, 0, kDeltaBytes), 0) << errno;
}

TEST_F(ImageMemoryTest, AHostWithoutMemoryForTwoVersionsIsRefusedAtTheStart) {
  add(1, 1 << 20);
  room_ = (2 << 20) - 1;
  std::string message;
  EXPECT_EQ(test::code_of([&] { open(); }, &message), ErrorCode::no_memory);
  EXPECT_NE(message.find("needs 2.0 MiB for two versions of 1.0 MiB"), std::string::npos)
      << message;
  room_ = 2 << 20;
  open();
  room_ = 1 << 20;
  add(2, 1 << 20);
  store_->evictor().require_memory();  // what is there counts
}

TEST_F(ImageMemoryTest, TheBaseIsNotRemovedToMakeRoomOnTheDisk) {
  limits_.store_bytes = 2000;
  open();
  add(1);
  add(2);
  store_->evictor().evict_for_images(1000);
  EXPECT_EQ(images().versions_on_disk(), MemoryNumbers{1});
  EXPECT_EQ(test::code_of([&] { store_->evictor().evict_for_images(1001); }), ErrorCode::no_space);
  EXPECT_EQ(images().complete_versions(), (MemoryNumbers{1, 2}));

  // An older base may go, also where it is in memory as well.
  ASSERT_TRUE(keep_on_disk(2));
  store_->evictor().evict_for_images(1000);
  EXPECT_EQ(images().versions_on_disk(), MemoryNumbers{2});
}

}  // namespace
}  // namespace weightfs
