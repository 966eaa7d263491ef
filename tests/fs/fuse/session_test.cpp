// Through a real mount: needs root and /dev/fuse, else the tests are skipped.
#include "fs/fuse/session.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fs/mount/mount_calls.hpp"
#include "fs/mount/mount_info.hpp"
#include "fs/mount/mount_point.hpp"
#include "store/base/error.hpp"
#include "store/database/db.hpp"
#include "store/os/file.hpp"
#include "store/staging/staging.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;

constexpr std::chrono::seconds kSessionLimit{30};

bool wait_for(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kSessionLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

// The errno of a call that gives -1, else 0.
int error_of(long result) { return result < 0 ? errno : 0; }

int open_error(const stdfs::path& path, int flags) {
  const File file(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  return file ? 0 : errno;
}

/// Requests that the kernel may send beside those of callers who wait; 0: fusectl does not say.
unsigned background_max(const FuseSession& session) {
  const test::TempDir control;
  if (mount("fusectl", control.path().c_str(), "fusectl", 0, nullptr) != 0) return 0;
  unsigned most = 0;
  std::ifstream(control / std::to_string(minor(session.device())) / "max_background") >> most;
  umount2(control.path().c_str(), MNT_DETACH);
  return most;
}

// Versions 1 and 2 on a mount of its own.
class FuseSessionTest : public testing::TestWithParam<Serve> {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || access("/dev/fuse", R_OK | W_OK) != 0) {
      GTEST_SKIP() << "needs root and /dev/fuse";
    }
    stdfs::create_directories(mount_);
    auto rng = test::make_rng();
    for (const std::uint64_t number : {1u, 2u})
      catalog_->versions[number] = make_version(number, rng);
    catalog_->latest = 2;
    catalog_->tags = {{"step-2", 2}};
    start(GetParam());
  }

  void TearDown() override {
    end();
    EXPECT_FALSE(find_mount(mount_)) << "the session left its mount behind";
  }

  std::shared_ptr<const CatalogVersion> make_version(std::uint64_t number, test::Random& rng) {
    auto version = std::make_shared<CatalogVersion>();
    version->number = number;
    version->time = 1'700'000'000;
    version->directory = store_ / "images" / std::to_string(number);
    version->entries = {{"", 0, true, 0, ImageState::complete}};
    for (const auto& [name, size] :
         {std::pair{"config.json", 17}, {"empty", 0}, {"big", 3'000'001}}) {
      std::string bytes(static_cast<std::size_t>(size), '\0');
      std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(rng()); });
      test::write_text(version->directory / name, bytes);
      version->entries.push_back({name, 0, false, bytes.size(), ImageState::complete});
    }
    std::sort(version->entries.begin(), version->entries.end(),
              [](const CatalogEntry& a, const CatalogEntry& b) { return a.path < b.path; });
    return version;
  }

  void start(Serve serve) {
    session_ = std::make_unique<FuseSession>(
        tree_, FuseSessionOptions{stdfs::canonical(mount_), "file:///x", serve, store_,
                                  [this] { return status_ + std::to_string(++status_made_); }});
    runner_ = std::jthread([session = session_.get()] { session->run(); });
    ASSERT_TRUE(stdfs::exists(mount_ / "versions"));  // answered by run()
  }

  void end() {
    session_.reset();
    if (runner_.joinable()) runner_.join();
  }

  std::string stored(int version, const char* name) const {
    return test::read_text(store_ / "images" / std::to_string(version) / name);
  }
  stdfs::path shown(int version, const char* name) const {
    return mount_ / "versions" / std::to_string(version) / name;
  }
  File open(int version, const char* name) const {
    return File::open(shown(version, name), O_RDONLY);
  }
  bool is_passthrough() const { return session_->serving().mode == "passthrough"; }
  std::uint64_t open_count() const {
    const ServingState serving = session_->serving();
    return serving.open_passthrough + serving.open_daemon;
  }

  const test::TempDir temp_;
  const stdfs::path store_ = temp_ / "store", mount_ = temp_ / "mnt";
  std::shared_ptr<Catalog> catalog_ = std::make_shared<Catalog>();
  std::mutex catalog_mutex_;
  const Tree tree_{[this] {
                     const std::lock_guard lock(catalog_mutex_);
                     return catalog_;
                   },
                   Ownership{}};
  std::string status_ = "status ";
  std::atomic<int> status_made_ = 0;
  std::unique_ptr<FuseSession> session_;
  std::jthread runner_;
};

TEST_P(FuseSessionTest, ServesAsItSays) {
  const ServingState serving = session_->serving();
  if (GetParam() == Serve::daemon) {
    EXPECT_EQ(serving.mode, "daemon");
    EXPECT_EQ(serving.why, "--serve daemon");
  } else if (serving.mode == "passthrough") {
    EXPECT_EQ(serving.why, "");
  } else {
    EXPECT_NE(serving.why, "") << "without passthrough there is a reason";
  }
}

TEST_P(FuseSessionTest, EveryByteIsRight) {
  for (const int version : {1, 2}) {
    for (const char* name : {"config.json", "empty", "big"}) {
      EXPECT_EQ(test::read_text(shown(version, name)), stored(version, name)) << name;
    }
  }
  EXPECT_EQ(test::read_text(mount_ / "latest/big"), stored(2, "big"));
  EXPECT_EQ(test::read_text(mount_ / "tags/step-2/big"), stored(2, "big"));
  const ServingState serving = session_->serving();
  if (is_passthrough()) {
    EXPECT_EQ(serving.daemon_reads, 0u);
  } else {
    EXPECT_GT(serving.daemon_reads, 0u);
  }
}

TEST_P(FuseSessionTest, MappingsAndReadsAtOffsetsAreRight) {
  const std::string bytes = stored(1, "big");
  File file = open(1, "big");
  void* map = mmap(nullptr, bytes.size(), PROT_READ, MAP_PRIVATE, file.fd(), 0);
  ASSERT_NE(map, MAP_FAILED);
  std::string part(4096, '\0');
  EXPECT_EQ(pread(file.fd(), part.data(), part.size(), 2'999'000), 1001);
  EXPECT_EQ(part.substr(0, 1001), bytes.substr(2'999'000));
  EXPECT_EQ(pread(file.fd(), part.data(), part.size(), 3'000'001), 0);
  EXPECT_EQ(readahead(file.fd(), 0, 1 << 20), 0);
  file = File();
  EXPECT_EQ(std::string_view(static_cast<const char*>(map), bytes.size()), bytes);
  munmap(map, bytes.size());
}

TEST_P(FuseSessionTest, EveryChangeIsRefused) {
  const stdfs::path directory = mount_ / "versions/1", file = directory / "config.json";
  // Remounted writable, the kernel no longer answers for the daemon.
  for (const unsigned long flags : {0ul, static_cast<unsigned long>(MS_RDONLY)}) {
    ASSERT_EQ(mount(nullptr, mount_.c_str(), nullptr, MS_REMOUNT | flags, nullptr), 0);
    EXPECT_EQ(open_error(file, O_WRONLY), EROFS);
    EXPECT_EQ(open_error(file, O_RDWR), EROFS);
    EXPECT_EQ(open_error(file, O_RDONLY | O_TRUNC), EROFS);
    EXPECT_EQ(open_error(directory / "new", O_WRONLY | O_CREAT), EROFS);
    EXPECT_EQ(error_of(mkdir((directory / "new").c_str(), 0700)), EROFS);
    EXPECT_EQ(error_of(mknod((directory / "new").c_str(), S_IFIFO | 0600, 0)), EROFS);
    EXPECT_EQ(error_of(symlink("x", (directory / "new").c_str())), EROFS);
    EXPECT_EQ(error_of(link(file.c_str(), (directory / "new").c_str())), EROFS);
    EXPECT_EQ(error_of(rename(file.c_str(), (directory / "new").c_str())), EROFS);
    EXPECT_EQ(error_of(unlink(file.c_str())), EROFS);
    EXPECT_EQ(error_of(rmdir((mount_ / "tags").c_str())), EROFS);
    EXPECT_EQ(error_of(truncate(file.c_str(), 0)), EROFS);
    EXPECT_EQ(error_of(chmod(file.c_str(), 0777)), EROFS);
    EXPECT_EQ(error_of(chown(file.c_str(), 1, 1)), EROFS);
    EXPECT_EQ(error_of(utimensat(AT_FDCWD, file.c_str(), nullptr, 0)), EROFS);
  }
  EXPECT_EQ(test::read_text(file), stored(1, "config.json"));
}

TEST_P(FuseSessionTest, SyncingSucceeds) {
  EXPECT_EQ(fsync(open(1, "big").fd()), 0);
  EXPECT_EQ(fsync(File::open(mount_ / "versions", O_RDONLY).fd()), 0);
}

TEST_P(FuseSessionTest, ReadersOfWhatIsNotHereMayBeMany) {
  const unsigned most = background_max(*session_);
  if (most == 0) GTEST_SKIP() << "needs fusectl";
  EXPECT_EQ(most, 16'384u);
}

TEST_P(FuseSessionTest, OpensAreCountedUntilTheLastRelease) {
  EXPECT_TRUE(session_->is_unused(1));
  {
    const File one = open(1, "big"), two = open(1, "big"), three = open(1, "config.json");
    EXPECT_EQ(open_count(), 3u);
    EXPECT_FALSE(session_->is_unused(1));
    EXPECT_TRUE(session_->is_unused(2));
  }
  EXPECT_TRUE(wait_for([&] { return open_count() == 0; }));  // RELEASE comes after close(2)
  EXPECT_TRUE(session_->is_unused(1));
}

TEST_P(FuseSessionTest, ManyReadersAtOnceGetRightBytesAndLeaveNothingOpen) {
  const std::string expected[] = {stored(1, "big"), stored(2, "big")};
  const auto read_often = [&](std::uint64_t reader) {
    test::Random rng(test::seed() + reader);
    std::string part(10'000, '\0');
    for (int step = 0; step < 300; step++) {
      const int version = 1 + static_cast<int>(rng() % 2);
      const std::string& bytes = expected[version - 1];
      const std::size_t offset = rng() % (bytes.size() - part.size());
      const File file = open(version, "big");
      ASSERT_TRUE(read_at(file.fd(), offset, std::as_writable_bytes(std::span(part)), "big"));
      ASSERT_EQ(part, bytes.substr(offset, part.size()));
    }
  };
  {
    std::vector<std::jthread> readers;
    for (std::uint64_t i = 0; i < 8; i++) readers.emplace_back(read_often, i);
  }
  EXPECT_TRUE(wait_for([&] { return open_count() == 0; }));
}

TEST_P(FuseSessionTest, EachOpenOfStatusHasATextOfItsOwn) {
  const File first = File::open(mount_ / ".weightfs/status", O_RDONLY);
  const File second = File::open(mount_ / ".weightfs/status", O_RDONLY);
  char text[64] = {};
  EXPECT_EQ(pread(second.fd(), text, sizeof text, 0), 8);
  EXPECT_STREQ(text, "status 2");
  EXPECT_EQ(pread(first.fd(), text, 6, 0), 6);
  EXPECT_EQ(pread(first.fd(), text, sizeof text, 7), 1);
  EXPECT_EQ(text[0], '1');
  EXPECT_EQ(pread(first.fd(), text, sizeof text, 8), 0);
  EXPECT_EQ(pread(first.fd(), text, sizeof text, 1000), 0);
  EXPECT_EQ(session_->serving().daemon_reads, 0u) << "status does not count itself";
}

// Each open of a text keeps one of its own: opens without a bound took all memory of the daemon.
TEST_P(FuseSessionTest, ManyOpensOfStatusAreBounded) {
  constexpr uid_t kNobody = 65534;
  constexpr std::size_t kTextBytes = 8u << 20, kAllBytes = 64u << 20;
  end();
  status_.assign(kTextBytes, 'x');
  start(GetParam());
  const File control = File::open(mount_ / ".weightfs", O_PATH);
  std::vector<File> opened;
  // Returns: the errno of the first that fails.
  const auto open_all = [&](uid_t user) {
    setfsuid(user);
    int error = 0;
    while (error == 0 && opened.size() <= kAllBytes / kTextBytes) {
      File file(openat(control.fd(), "status", O_RDONLY | O_CLOEXEC));
      if (!file) error = errno;
      if (file) opened.push_back(std::move(file));
    }
    setfsuid(0);
    return error;
  };
  EXPECT_EQ(open_all(kNobody), ENFILE);
  const std::size_t of_others = opened.size();
  EXPECT_GT(of_others, 0u);
  EXPECT_EQ(open_all(0), ENFILE);
  EXPECT_GT(opened.size(), of_others) << "some are left for who looks after the mount";
  EXPECT_LE(opened.size() * kTextBytes, kAllBytes);
  opened.clear();
  EXPECT_TRUE(wait_for([&] { return open_error(mount_ / ".weightfs/status", O_RDONLY) == 0; }));
}

TEST_P(FuseSessionTest, LatestMovesWithoutDelayAndOpenFilesStay) {
  const File old = File::open(mount_ / "latest/big", O_RDONLY);
  const std::string bytes = stored(2, "big");
  auto changed = std::make_shared<Catalog>(*catalog_);
  changed->latest = 1;
  changed->versions.erase(2);
  {
    const std::lock_guard lock(catalog_mutex_);
    catalog_ = changed;
  }
  EXPECT_EQ(stdfs::read_symlink(mount_ / "latest"), "versions/1");
  EXPECT_EQ(test::read_text(mount_ / "latest/big"), stored(1, "big"));
  stdfs::remove(store_ / "images/2/big");
  std::string read(bytes.size(), '\0');
  EXPECT_TRUE(read_at(old.fd(), 0, std::as_writable_bytes(std::span(read)), "big"));
  EXPECT_EQ(read, bytes) << "an open file goes on though its version went away";
}

/// It was ESTALE, which says that looking again would help, and nothing was in the log.
TEST_P(FuseSessionTest, AnImageThatIsLostIsAnErrorAndNotStaleNorEmpty) {
  stdfs::remove(store_ / "images/1/big");
  EXPECT_EQ(open_error(shown(1, "big"), O_RDONLY), EIO);
  EXPECT_EQ(open_count(), 0u);
}

// It stayed counted, so its version was kept for ever, and could not be opened when it was made
// again.
TEST_P(FuseSessionTest, AnOpenThatFailsAfterItWasCountedIsTakenBack) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's operator new";
  const stdfs::path path = shown(1, "big");
  int failures = 0;
  for (unsigned left = 0;; left++) {
    int error = 0;
    {
      const test::NoMemory memory(left);
      error = open_error(path, O_RDONLY);
      if (!memory.was_missed()) break;
    }
    failures += error == 0 ? 0 : 1;
    ASSERT_TRUE(error == 0 || error == EIO) << error;
    ASSERT_TRUE(wait_for([&] { return open_count() == 0; })) << "with " << left << " allocations";
  }
  EXPECT_GT(failures, 2);
  EXPECT_TRUE(wait_for([&] { return open_count() == 0; }));
}

TEST_P(FuseSessionTest, StopEndsRunAndTheSessionUnmounts) {
  EXPECT_TRUE(find_mount(mount_));
  session_->stop();
  session_->stop();
  runner_.join();
  end();
  EXPECT_FALSE(find_mount(mount_));
}

TEST_P(FuseSessionTest, UnmountingEndsRun) {
  unmount(mount_, false);
  runner_.join();
  end();
}

TEST_P(FuseSessionTest, TheEndDetachesABusyMountAndOpenPassthroughFilesGoOn) {
  const File file = open(1, "big");
  const std::string bytes = stored(1, "big");
  const bool passthrough = is_passthrough();
  end();
  EXPECT_FALSE(find_mount(mount_));
  if (!passthrough) return;
  std::string read(bytes.size(), '\0');
  EXPECT_TRUE(read_at(file.fd(), 0, std::as_writable_bytes(std::span(read)), "big"));
  EXPECT_EQ(read, bytes);
}

TEST_P(FuseSessionTest, TheEndLeavesAForeignMountAbove) {
  ASSERT_EQ(mount("foreign", mount_.c_str(), "tmpfs", 0, nullptr), 0);
  end();
  ASSERT_TRUE(find_mount(mount_));
  EXPECT_EQ(find_mount(mount_)->source, "foreign");
  EXPECT_EQ(try_unmount(mount_, false), 0);
  unmount_dead(stdfs::canonical(mount_.parent_path()) / mount_.filename());  // the session's own
}

TEST_P(FuseSessionTest, InodeNumbersAreTheSameAfterARestart) {
  const auto number_of = [&](const stdfs::path& path) {
    struct stat attributes {};
    EXPECT_EQ(stat(path.c_str(), &attributes), 0);
    return attributes.st_ino;
  };
  const auto before = number_of(shown(2, "big"));
  end();
  start(GetParam());
  EXPECT_EQ(number_of(shown(2, "big")), before);
}

TEST_P(FuseSessionTest, BindModeIsAnErrorWhereNothingCanBeBound) {
  end();
  const auto make = [&] {
    const FuseSession session(tree_, {stdfs::canonical(mount_), "file:///x", Serve::bind,
                                      store_ / "absent", [] { return ""; }});
  };
  try {
    make();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("--serve bind is not available here"),
              std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Serving, FuseSessionTest, testing::Values(Serve::automatic, Serve::daemon),
                         [](const auto& param) {
                           return param.param == Serve::daemon ? "daemon" : "automatic";
                         });

// A writer's mount.
class FuseWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || access("/dev/fuse", R_OK | W_OK) != 0) {
      GTEST_SKIP() << "needs root and /dev/fuse";
    }
    stdfs::create_directories(mount_);
  }

  void start(StagingOptions options) {
    staging_ = std::make_unique<Staging>(*db_, temp_ / "staging", std::move(options));
    session_ = std::make_unique<FuseSession>(
        tree_, FuseSessionOptions{.mount_point = stdfs::canonical(mount_),
                                  .source = "file:///x",
                                  .store = temp_.path(),
                                  .status = {},
                                  .writing = {staging_.get()}});
    runner_ = std::jthread([session = session_.get()] { session->run(); });
  }
  void TearDown() override {
    if (session_) session_->stop();
  }

  const test::TempDir temp_;
  const stdfs::path mount_ = temp_ / "mnt";
  const std::unique_ptr<Db> db_ = Db::open(temp_ / "db");
  const std::shared_ptr<const Catalog> catalog_ = std::make_shared<const Catalog>();
  const Tree tree_{[this] { return catalog_; }, Ownership{}, true};
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<FuseSession> session_;
  std::jthread runner_;
};

// The daemon copies each of them: 16,384 were 16 GiB.
TEST_F(FuseWriterTest, WritesThatWaitForTheDiskAreBounded) {
  start({});
  const unsigned most = background_max(*session_);
  if (most == 0) GTEST_SKIP() << "needs fusectl";
  EXPECT_EQ(most, 1024u);
}

// Making room may end a bind mount below the mount: the kernel then asks the session.
TEST_F(FuseWriterTest, CreatesThatWaitForRoomLeaveTheSessionServed) {
  constexpr int kSavers = 24;  // more than the session has threads
  std::atomic<bool> is_full = false;
  std::atomic<int> waiting = 0;
  start({.make_room =
             [&](std::uint64_t) {
               if (!is_full) return;
               waiting++;
               is_full.wait(true);
             },
         .has_room = [&](std::uint64_t) { return !is_full; }});
  const auto folder = [&](int i) { return mount_ / "staging" / std::to_string(i); };
  for (int i = 0; i < kSavers; i++) stdfs::create_directory(folder(i));

  is_full = true;
  std::vector<std::jthread> savers;
  std::atomic<int> made = 0;
  for (int i = 0; i < kSavers; i++) {
    savers.emplace_back(
        [&, i] { made += open_error(folder(i) / "f", O_WRONLY | O_CREAT | O_EXCL) == 0 ? 1 : 0; });
  }
  EXPECT_TRUE(wait_for([&] { return waiting >= 4; }));
  auto looks = std::async(std::launch::async, [&] {
    for (int i = 1; i < 200; i++) {
      if (stdfs::exists(mount_ / "versions" / std::to_string(i))) return false;
    }
    return true;
  });
  EXPECT_EQ(looks.wait_for(kSessionLimit), std::future_status::ready);
  EXPECT_EQ(made, 0);
  is_full = false;
  is_full.notify_all();
  EXPECT_TRUE(looks.get());
  savers.clear();
  EXPECT_EQ(made, kSavers);
}

}  // namespace
}  // namespace weightfs::fs
