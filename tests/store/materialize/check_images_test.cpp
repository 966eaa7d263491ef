#include "store/materialize/check_images.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/local/sync_images.hpp"
#include "store/materialize/materialize.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/sync_watch.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::mark_as_lost;
using test::RepositoryBuilder;
using CheckedNumbers = std::vector<std::uint64_t>;

/// A host that is opened again, as after a power cut; what that took is written by hand.
class CheckImages : public ::testing::Test {
 protected:
  CheckImages() {
    publish();
    publish();
    open();
    for (const std::uint64_t version : {1u, 2u})
      materialize(*host_->store, host_->history, version, {}, {});
  }

  /// Another version: one file changes.
  void publish() {
    test::nudge(tensor_, 0.01, rng_);
    builder_.add({{"a.safetensors", test::make_safetensors({tensor_})},
                  {"sub/b.safetensors", test::make_safetensors({other_})},
                  {"config.json", "{}"}});
  }

  void open() {
    host_.reset();
    host_ = std::make_unique<test::Host>(builder_.open(), directory_ / "store");
  }
  void check() { check_images(*host_->store, host_->history, {}); }

  [[nodiscard]] filesystem::path image(std::uint64_t version, const std::string& path) const {
    return host_->store->images().image_directory(version) / path;
  }
  /// In place, as a disk does it.
  static void write_over(const filesystem::path& path, std::uint64_t offset,
                         const std::string& bytes) {
    filesystem::permissions(path, filesystem::perms::owner_write, filesystem::perm_options::add);
    const int fd = ::open(path.c_str(), O_WRONLY);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
    ::close(fd);
  }

  test::TempDir directory_;
  test::Random rng_ = test::make_rng();
  test::TestTensor tensor_ = test::random_tensor("x", Dtype::bf16, {1'500'000}, rng_);
  test::TestTensor other_ = test::random_tensor("y", Dtype::f32, {1000}, rng_);
  RepositoryBuilder builder_;
  std::unique_ptr<test::Host> host_;
};

TEST_F(CheckImages, NothingThatWasMaterialisedIsSynced) {
  EXPECT_EQ(host_->store->images().unsynced_versions(), (CheckedNumbers{1, 2}));
}

TEST_F(CheckImages, VersionsThatAreRightAreCompleteAfterTheCheckAndNotBefore) {
  open();
  EXPECT_TRUE(host_->store->images().complete_versions().empty());
  check();
  EXPECT_EQ(host_->store->images().complete_versions(), (CheckedNumbers{1, 2}));
  EXPECT_EQ(host_->store->images().unsynced_versions(), (CheckedNumbers{1, 2}));
  EXPECT_TRUE(test::read_tree(host_->store->images().image_directory(2)) == builder_.tree(2));
}

TEST_F(CheckImages, EveryKindOfDamageIsFoundAndTheVersionIsRebuilt) {
  const std::vector<std::pair<std::string, std::uint64_t>> places{
      {"a.safetensors", 0},         {"a.safetensors", 20},       {"a.safetensors", 1000},
      {"a.safetensors", 2'999'999}, {"sub/b.safetensors", 3000}, {"config.json", 0}};
  for (const auto& [path, offset] : places) {
    SCOPED_TRACE(path + " at " + std::to_string(offset));
    write_over(image(2, path), offset, std::string(2, '\x7e'));
    open();
    check();
    // A small file, or one that did not change, is the same inode in both versions.
    EXPECT_FALSE(host_->store->images().is_complete(2));
    EXPECT_FALSE(filesystem::exists(host_->store->images().image_directory(2)));
    EXPECT_TRUE(host_->read_version(2) == builder_.tree(2));
    EXPECT_TRUE(host_->read_version(1) == builder_.tree(1));
  }
}

TEST_F(CheckImages, ZerosOfTheRightSizeAreNoVersion) {
  const auto size = filesystem::file_size(image(2, "a.safetensors"));
  write_over(image(2, "a.safetensors"), 0, std::string(size, '\0'));
  open();
  check();
  EXPECT_EQ(host_->store->images().complete_versions(), CheckedNumbers{1});
}

// A file that the disk did not take belonged to every version that was made after it, and hid each.
TEST_F(CheckImages, AFileThatTheDiskDidNotTakeIsNotLinkedIntoTheNextVersion) {
  host_->store->images().remove_images(2);
  for (const std::string path : {"config.json", "sub/b.safetensors"}) mark_as_lost(image(1, path));
  materialize(*host_->store, host_->history, 2, {}, {});
  EXPECT_TRUE(test::read_tree(host_->store->images().image_directory(2)) == builder_.tree(2));
  EXPECT_EQ(sync_images(host_->store->images(), 2), SyncedImages::synced);
  EXPECT_THROW(static_cast<void>(sync_images(host_->store->images(), 1)), Error);
}

// A publish has printed its result, and somebody wants it to end.
TEST_F(CheckImages, ASyncThatIsStoppedLeavesTheRestUnsynced) {
  int asked = 0;
  sync_all_images(host_->store->images(), [&] { return asked++ > 0; });
  EXPECT_EQ(host_->store->images().unsynced_versions(), (CheckedNumbers{1, 2}));
  sync_all_images(host_->store->images());
  EXPECT_EQ(host_->store->images().unsynced_versions(), CheckedNumbers{});
}

TEST_F(CheckImages, WhatWasSyncedIsNotRead) {
  EXPECT_EQ(sync_images(host_->store->images(), 2), SyncedImages::synced);
  write_over(image(2, "a.safetensors"), 1000, "x");
  test::seal_files(image(2, ""));  // a disk that rots tells no time
  open();
  EXPECT_EQ(host_->store->images().complete_versions(), CheckedNumbers{2});
  check();
  EXPECT_EQ(host_->store->images().complete_versions(), (CheckedNumbers{1, 2}));
}

// The store was copied while its daemon made version 2, which was synced when the database was.
TEST_F(CheckImages, AFileThatWasCopiedHalfWrittenIsFoundThoughItsVersionWasSynced) {
  sync_all_images(host_->store->images());
  const std::string half(filesystem::file_size(image(2, "a.safetensors")) / 2, '\0');
  write_over(image(2, "a.safetensors"), half.size(), half);
  open();
  EXPECT_EQ(host_->store->images().complete_versions(), CheckedNumbers{1});
  check();
  EXPECT_EQ(host_->store->images().complete_versions(), CheckedNumbers{1});
  EXPECT_TRUE(host_->read_version(2) == builder_.tree(2));
}

// Every start would take the time to read all of a store that was copied without its times.
TEST_F(CheckImages, WhatWasWrittenToAndIsRightIsCheckedOnce) {
  sync_all_images(host_->store->images());
  for (const std::string path : {"a.safetensors", "config.json"}) {
    ASSERT_EQ(::utimensat(AT_FDCWD, image(2, path).c_str(), nullptr, 0), 0);
  }
  open();
  EXPECT_FALSE(host_->store->images().is_complete(2));
  check();
  sync_all_images(host_->store->images());
  open();
  EXPECT_EQ(host_->store->images().complete_versions(), (CheckedNumbers{1, 2}));
}

// It says nothing of the bytes, all of which were found to be right.
TEST_F(CheckImages, WhatIsRightStaysThoughItCannotBeSealed) {
  sync_all_images(host_->store->images());
  ASSERT_EQ(::utimensat(AT_FDCWD, image(2, "a.safetensors").c_str(), nullptr, 0), 0);
  open();
  {
    const test::SyncWatch watch("a.safetensors", EPERM);
    check();
  }
  EXPECT_EQ(host_->store->images().complete_versions(), (CheckedNumbers{1, 2}));
  open();
  EXPECT_EQ(host_->store->images().complete_versions(), CheckedNumbers{1}) << "checked again";
  {
    const test::SyncWatch watch("a.safetensors");
    check();
  }
  EXPECT_EQ(host_->store->images().complete_versions(), CheckedNumbers{1}) << "the disk lost it";
}

TEST_F(CheckImages, ADamagedUnsyncedBaseIsDroppedAndTheVersionComesFromElsewhere) {
  publish();
  host_->store->images().remove_images(1);
  write_over(image(2, "a.safetensors"), 1000, std::string(500'000, '\0'));
  EXPECT_TRUE(host_->read_version(3) == builder_.tree(3));
  EXPECT_TRUE(host_->read_version(2) == builder_.tree(2));
}

TEST_F(CheckImages, AVersionWithoutSomeFilesIsCheckedWithoutThem) {
  host_->store->images().remove_images(2);
  materialize(*host_->store, host_->history, 2, {}, {}, kernels::make_cpu_coder(),
              {"sub/b.safetensors"});
  open();
  check();
  EXPECT_TRUE(host_->store->images().is_complete(2));
  EXPECT_FALSE(host_->store->images().has_all_files(2));
}

TEST_F(CheckImages, ACheckThatIsStoppedLeavesTheVersionsUnchecked) {
  open();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(check_images(*host_->store, host_->history, {stop.get_token()}), Error);
  EXPECT_EQ(host_->store->images().unchecked_versions(), (CheckedNumbers{1, 2}));
}

}  // namespace
}  // namespace weightfs
