// Images that are damaged or lost, and streamed in again, through a real mount: needs root and
// /dev/fuse, else the tests are skipped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "fs/fuse/session.hpp"
#include "fs/fuse/tree.hpp"
#include "store/materialize/materialize.hpp"
#include "store/os/file.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

// Than the last one of which it is known.
bool is_newer_kernel() {
  utsname system{};
  int major = 0, minor = 0;
  if (uname(&system) != 0) return false;
  std::istringstream release(system.release);
  release >> major >> std::ws;
  release.ignore();
  release >> minor;
  return std::pair(major, minor) > std::pair(6, 18);
}

constexpr const char* kLostName = "a.safetensors";

// A host with versions 1 and 2, which stream in when they are lost.
class LostImagesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || access("/dev/fuse", R_OK | W_OK) != 0) {
      GTEST_SKIP() << "needs root and /dev/fuse";
    }
    stdfs::create_directories(mount_);
    auto rng = test::make_rng();
    auto weights = test::random_tensor("x", Dtype::bf16, {300'000}, rng);
    for (int version = 1; version <= 2; version++) {
      test::nudge(weights, 0.01, rng);
      builder_.add({{kLostName, test::make_safetensors({weights})}});
    }
    host_ = std::make_unique<test::Host>(builder_.open(), temp_ / "store");
    for (const std::uint64_t version : {1u, 2u}) host_->read_version(version);
    SyncOptions options;
    options.with_absent = options.partial = true;
    sync_ = std::make_unique<Sync>(*host_->store, host_->history, std::move(options));
    sync_->run_once({});
  }

  void TearDown() override {
    builder_.bucket()->heal();
    session_.reset();
    if (runner_.joinable()) runner_.join();
  }

  void start(Serve serve) {
    FuseSessionOptions options{.mount_point = stdfs::canonical(mount_),
                               .source = "file:///x",
                               .serve = serve,
                               .store = host_->store->path(),
                               .status = {},
                               .sync = sync_.get()};
    session_ = std::make_unique<FuseSession>(tree_, std::move(options));
    runner_ = std::jthread([session = session_.get()] { session->run(); });
    ASSERT_TRUE(stdfs::exists(mount_ / "versions/1"));  // answered by run()
  }

  // What a disk may do.
  void rot() const {
    const stdfs::path image = host_->store->images().image_directory(1) / kLostName;
    std::string bytes = test::read_text(image);
    for (std::size_t i = 1000; i < bytes.size(); i += 4096) bytes[i] ^= 1;
    const File file = File::open(image, O_WRONLY);
    ASSERT_EQ(pwrite(file.fd(), bytes.data(), bytes.size(), 0), static_cast<long>(bytes.size()));
  }

  // As when fsync has failed, or a damaged base was found; its files are still there.
  void lose() {
    ImageTable& images = host_->store->images();
    ASSERT_TRUE(images.forget_images(1, images.generation(1)));
    sync_->name_version(1, {});
  }

  // The catalog of the mount.
  std::shared_ptr<const Catalog> look() {
    auto catalog = sync_->catalog();
    if (!catalog->versions.contains(1) || !is_lost_when_it_is_here_.exchange(false)) return catalog;
    rot();
    lose();
    return sync_->catalog();
  }

  // Nothing of a snapshot arrives before heal().
  void hang_snapshots() const {
    for (const auto& [key, bytes] : builder_.bucket()->objects()) {
      if (key.starts_with("snapshots/") && key.ends_with(kLostName)) {
        builder_.bucket()->hang_key(key);
      }
    }
  }

  [[nodiscard]] stdfs::path shown() const { return mount_ / "versions/1" / kLostName; }
  [[nodiscard]] const std::string& expected() const { return builder_.tree(1).at(kLostName); }

  const test::TempDir temp_;
  const stdfs::path mount_ = temp_ / "mnt";
  test::RepositoryBuilder builder_;
  std::unique_ptr<test::Host> host_;
  std::unique_ptr<Sync> sync_;
  std::atomic<bool> is_lost_when_it_is_here_ = false;
  const Tree tree_{[this] { return look(); }, Ownership{}};
  std::unique_ptr<FuseSession> session_;
  std::jthread runner_;
};

// The kernel asks the daemon for what readahead(2) wants, and keeps it under the inode, though it
// reads the image itself.  Where the daemon served the same file later, readers got these pages.
TEST_F(LostImagesTest, WhatPassthroughLeftIsDroppedWhenTheImageIsAnother) {
  start(Serve::automatic);
  if (session_->serving().mode != "passthrough") GTEST_SKIP() << "no passthrough here";
  rot();
  {
    const File file = File::open(shown(), O_RDONLY);
    ASSERT_EQ(posix_fadvise(file.fd(), 0, 0, POSIX_FADV_WILLNEED), 0);
  }
  ASSERT_TRUE(test::eventually([&] { return session_->is_unused(1); }));
  if (session_->serving().daemon_reads == 0) {
    ASSERT_TRUE(is_newer_kernel()) << "the daemon serves no readahead(2)";
    GTEST_SKIP() << "this kernel asks the image";
  }

  lose();
  hang_snapshots();
  const File file = File::open(shown(), O_RDONLY);
  EXPECT_EQ(session_->serving().open_daemon, 1u) << "it streams in";
  builder_.bucket()->heal();
  std::string read(expected().size(), '\0');
  ASSERT_TRUE(read_at(file.fd(), 0, std::as_writable_bytes(std::span(read)), "a"));
  EXPECT_TRUE(read == expected());
}

// The version was brought while its OPEN waited, so there was nothing to fill, and then the disk
// lost it: what lay there was taken for complete.
TEST_F(LostImagesTest, WhatWasLostWhileItsOpenWaitedIsFilledAgain) {
  start(Serve::daemon);
  lose();
  materialize(*host_->store, host_->history, 1, {}, {});
  ASSERT_FALSE(sync_->catalog()->versions.contains(1)) << "nobody has looked yet";
  is_lost_when_it_is_here_ = true;
  EXPECT_TRUE(test::read_text(shown()) == expected());
  EXPECT_FALSE(is_lost_when_it_is_here_);
}

}  // namespace
}  // namespace weightfs::fs
