// What is bound of a made-up catalog; the mount is a tmpfs, which is walked without a daemon.
#include "fs/daemon/bound_versions.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "store/base/error.hpp"
#include "store/local/image_times.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;
using test::code_of;
using test::eventually;
using test::TempDir;
using Versions = std::vector<std::uint64_t>;

MountInfo mount_from(const std::string& line) { return parse_mounts(line + "\n").at(0); }

TEST(BindMounts, AreKnownByTheirPlaceAndTheirRoot) {
  const MountInfo mount = mount_from("36 22 0:45 / /mnt/w ro - fuse.weightfs file:///b ro");
  const auto version_of = [&](const std::string& parent, const std::string& root,
                              const std::string& path) {
    return bound_version(
        mount_from("40 " + parent + " 254:0 " + root + " " + path + " ro - ext4 /dev/vda rw"),
        mount);
  };
  EXPECT_EQ(version_of("36", "/var/s/images/42", "/mnt/w/versions/42"), 42u);
  EXPECT_EQ(version_of("36", "/42", "/mnt/w/versions/42"), 42u) << "images/ is a file system";
  EXPECT_EQ(version_of("36", "/s/tmp/removed-1//deleted", "/mnt/w/versions/42"), 42u);
  EXPECT_FALSE(version_of("37", "/var/s/images/42", "/mnt/w/versions/42")) << "in another mount";
  EXPECT_FALSE(version_of("36", "/var/s/images/41", "/mnt/w/versions/42"));
  EXPECT_FALSE(version_of("36", "/var/s/other/42", "/mnt/w/versions/42"));
  EXPECT_FALSE(version_of("36", "/", "/mnt/w/versions/42"));
  EXPECT_FALSE(version_of("36", "/var/s/images/x", "/mnt/w/versions/x"));
  EXPECT_FALSE(version_of("36", "/var/s/images/42", "/mnt/w/versions/42/sub"));
  EXPECT_FALSE(version_of("36", "/var/s/images/42", "/mnt/w/42"));
}

class BoundVersionsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || !try_bind(temp_.path()).available) GTEST_SKIP() << "needs CAP_SYS_ADMIN";
    stdfs::create_directory(temp_ / "mnt");
    mount_ = stdfs::canonical(temp_ / "mnt");
    ASSERT_EQ(::mount("test", mount_.c_str(), "tmpfs", 0, "size=1M"), 0);
    show({});
  }
  void TearDown() override {
    bound_.reset();
    while (!mount_.empty() && umount2(mount_.c_str(), MNT_DETACH) == 0) {
    }
  }

  void start(const Ownership& ownership = {}) {
    bound_.emplace(BoundVersionsOptions{.ownership = ownership});
    EXPECT_TRUE(bound_->withdraw(1)) << "nothing is bound yet";
    bound_->start(*find_mount(mount_), [this] {
      const std::lock_guard lock(mutex_);
      return catalog_;
    });
  }

  std::shared_ptr<CatalogVersion> make_version(std::uint64_t number) {
    auto version = std::make_shared<CatalogVersion>();
    version->number = number;
    version->time = 1'700'000'000;
    version->directory = temp_ / ("images/" + std::to_string(number));
    version->entries = {{"", 0, true, 0, ImageState::complete},
                        {"model.safetensors", 0, false, 1, ImageState::complete}};
    test::write_text(version->directory / "model.safetensors", std::to_string(number));
    stdfs::create_directories(mount_ / version_target(number));
    return version;
  }

  void show(const Versions& numbers) {
    auto catalog = std::make_shared<Catalog>();
    for (const std::uint64_t number : numbers) catalog->versions[number] = make_version(number);
    const std::lock_guard lock(mutex_);
    catalog_ = catalog;
  }

  [[nodiscard]] stdfs::path shard(std::uint64_t number) const {
    return mount_ / version_target(number) / "model.safetensors";
  }
  bool becomes(const Versions& versions) {
    return eventually([&] { return bound_->list() == versions; });
  }

  const TempDir temp_;
  stdfs::path mount_;
  std::mutex mutex_;
  std::shared_ptr<const Catalog> catalog_;
  std::optional<BoundVersions> bound_;
};

TEST_F(BoundVersionsTest, NothingCanBeBoundWithoutTheCapability) {
  std::thread([&] {  // a capability is a thread's own
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    ASSERT_EQ(syscall(SYS_capget, &header, data), 0);
    data[0].effective &= ~(1U << CAP_SYS_ADMIN);
    ASSERT_EQ(syscall(SYS_capset, &header, data), 0);
    const BindState state = try_bind(temp_.path());
    EXPECT_FALSE(state.available);
    EXPECT_EQ(state.why_not, "bind mounts need CAP_SYS_ADMIN (run as root)");
    EXPECT_EQ(code_of([&] { bind_directory(temp_.path(), mount_); }), ErrorCode::permission);
  })
      .join();
  EXPECT_TRUE(try_bind(temp_.path()).available);
}

TEST_F(BoundVersionsTest, FollowTheCatalog) {
  show({1, 2});
  start();
  EXPECT_EQ(bound_->list(), (Versions{1, 2}));
  EXPECT_EQ(test::read_text(shard(2)), "2");
  show({2, 3});
  bound_->notify();
  EXPECT_TRUE(becomes({2, 3}));
  EXPECT_FALSE(stdfs::exists(shard(1)));
  show({2, 3, 4});
  bound_->bring(4);
  EXPECT_EQ(bound_->list(), (Versions{2, 3, 4}));
  bound_->bring(5);
  EXPECT_FALSE(bound_->is_bound(5));
}

TEST_F(BoundVersionsTest, OneThatLacksFilesIsServedByTheDaemon) {
  auto catalog = std::make_shared<Catalog>();
  for (const std::uint64_t number : {1u, 2u}) {
    const auto version = make_version(number);
    version->entries[1].is_remote = number == 2;
    catalog->versions[number] = version;
  }
  catalog_ = catalog;
  start();
  bound_->bring(2);
  EXPECT_EQ(bound_->list(), Versions{1});
}

TEST_F(BoundVersionsTest, OneThatIsWithdrawnStaysUnboundUntilItIsRestored) {
  show({1, 2});
  start();
  EXPECT_TRUE(bound_->withdraw(1));
  EXPECT_FALSE(stdfs::exists(shard(1)));
  show({1, 2, 3});
  bound_->notify();
  EXPECT_TRUE(becomes({2, 3}));
  bound_->bring(1);
  EXPECT_EQ(bound_->list(), (Versions{2, 3}));
  bound_->restore(1);
  EXPECT_TRUE(becomes({1, 2, 3}));
}

TEST_F(BoundVersionsTest, OneThatWasWithdrawnAndRemovedIsBoundWhenItIsThereAgain) {
  show({1, 2});
  start();
  EXPECT_TRUE(bound_->withdraw(1));
  show({2, 3});
  bound_->notify();
  EXPECT_TRUE(becomes({2, 3}));
  show({1, 2, 3});
  bound_->notify();
  EXPECT_TRUE(becomes({1, 2, 3}));
}

TEST_F(BoundVersionsTest, OneThatIsInUseIsNotWithdrawn) {
  show({1});
  start();
  const File held = File::open(shard(1), O_RDONLY);
  EXPECT_FALSE(bound_->withdraw(1));
  EXPECT_TRUE(bound_->is_bound(1));
  EXPECT_EQ(test::read_text(shard(1)), "1");
}

TEST_F(BoundVersionsTest, OneThatTheDiskLostIsBoundAnewThoughItIsRead) {
  show({1});
  start();
  const File held = File::open(shard(1), O_RDONLY);
  stdfs::remove_all(temp_ / "images/1");
  show({1});
  test::write_text(temp_ / "images/1/model.safetensors", "again");
  bound_->notify();
  EXPECT_TRUE(eventually([&] { return stdfs::exists(shard(1)); }));
  EXPECT_EQ(test::read_text(shard(1)), "again");
  std::string kept(1, '?');
  ASSERT_TRUE(read_at(held.fd(), 0, std::as_writable_bytes(std::span(kept)), "held"));
  EXPECT_EQ(kept, "1");
}

// The mark is all that remains of the disk's error, and the time of a bound file is set.
TEST_F(BoundVersionsTest, OneWithAFileThatTheDiskLostIsNotBound) {
  show({1});
  const stdfs::path image = temp_ / "images/1/model.safetensors";
  const timespec times[2] = {{1, 0}, {1, 1}};
  ASSERT_EQ(::utimensat(AT_FDCWD, image.c_str(), times, 0), 0);
  start();
  EXPECT_FALSE(bound_->is_bound(1));
  struct stat found {};
  ASSERT_EQ(::stat(image.c_str(), &found), 0);
  EXPECT_TRUE(is_marked_lost(found));
}

TEST_F(BoundVersionsTest, OneThatTheDiskLostIsHiddenThoughItIsRead) {
  show({1, 2});
  start();
  const File held = File::open(shard(1), O_RDONLY);
  show({2});
  bound_->notify();
  EXPECT_TRUE(becomes({2}));
  EXPECT_FALSE(stdfs::exists(shard(1)));
}

TEST_F(BoundVersionsTest, WhatIsMountedOverOneIsNotTouched) {
  show({1});
  start();
  const stdfs::path place = mount_ / version_target(1);
  ASSERT_EQ(::mount("foreign", place.c_str(), "tmpfs", 0, "size=1M"), 0);
  EXPECT_FALSE(bound_->withdraw(1));
  EXPECT_EQ(find_mount(place)->source, "foreign");
}

TEST_F(BoundVersionsTest, NothingIsBoundOverAnotherMountThatTookThePlace) {
  show({1});
  start();
  ASSERT_EQ(::mount("foreign", mount_.c_str(), "tmpfs", 0, "size=1M"), 0);
  show({1, 2});  // makes versions/ in the new one
  bound_->bring(2);
  EXPECT_FALSE(stdfs::exists(shard(2)));
  EXPECT_FALSE(bound_->is_bound(2));
}

TEST_F(BoundVersionsTest, NothingIsBoundOnceStopped) {
  show({1});
  start();
  bound_->stop();
  show({1, 2});
  bound_->bring(2);
  EXPECT_FALSE(bound_->is_bound(2));
  EXPECT_FALSE(bound_->withdraw(1));
}

TEST_F(BoundVersionsTest, ImagesGetTheAttributesOfTheMount) {
  show({1, 2});
  const stdfs::path first = temp_ / "images/1/model.safetensors";
  const stdfs::path second = temp_ / "images/2/model.safetensors";
  stdfs::remove(second);
  stdfs::create_hard_link(first, second);
  const timespec times[2] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, first.c_str(), times, 0), 0);
  start({.uid = 12, .gid = 34, .umask = 0227});
  struct stat found {};
  ASSERT_EQ(stat(shard(2).c_str(), &found), 0);
  EXPECT_EQ(found.st_mode, S_IFREG | 0440u);
  EXPECT_EQ(found.st_uid, 12u);
  EXPECT_EQ(found.st_gid, 34u);
  EXPECT_EQ(found.st_mtim.tv_sec, 1'600'000'000) << "versions share it";
  ASSERT_EQ(stat((mount_ / version_target(2)).c_str(), &found), 0);
  EXPECT_EQ(found.st_mode, S_IFDIR | 0550u);
  EXPECT_EQ(found.st_mtim.tv_sec, 1'700'000'000);
}

/// That it was is known by nothing else.
TEST_F(BoundVersionsTest, AnImageThatWasWrittenToKeepsItsTime) {
  show({1, 2});
  const stdfs::path first = temp_ / "images/1/model.safetensors";
  const timespec times[2] = {{1'600'000'000, 500}, {1'600'000'000, 500}};
  ASSERT_EQ(utimensat(AT_FDCWD, first.c_str(), times, 0), 0);
  start();
  struct stat found {};
  ASSERT_EQ(stat(shard(1).c_str(), &found), 0);
  EXPECT_EQ(found.st_mtim.tv_nsec, 500);
}

TEST_F(BoundVersionsTest, WhatCannotBeGivenTheAttributesIsNotBound) {
  show({1, 2});
  stdfs::remove(temp_ / "images/1/model.safetensors");
  start();
  EXPECT_EQ(bound_->list(), Versions{2});
}

TEST_F(BoundVersionsTest, AnAbsentDirectoryIsAnError) {
  EXPECT_EQ(code_of([&] { bind_directory(temp_ / "absent", mount_); }), ErrorCode::io);
}

}  // namespace
}  // namespace weightfs::fs
