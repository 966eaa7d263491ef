#include "store/publish/publish_store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "store/publish/publish.hpp"
#include "tests/support/hosts.hpp"

extern char** environ;

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

constexpr std::string_view kRepository = "0123456789abcdef0123456789abcdef";
constexpr std::string_view kUrl = "file:///a/bucket";

/// The pid of a process that has ended.
pid_t dead_pid() {
  const char* arguments[] = {"true", nullptr};
  pid_t pid = 0;
  EXPECT_EQ(::posix_spawnp(&pid, "true", nullptr, nullptr, const_cast<char**>(arguments), environ),
            0);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  return pid;
}

class PublishStoreTest : public testing::Test {
 protected:
  PublishStore open() { return PublishStore::open(path_, kRepository, kUrl, kNoFloor); }
  std::unique_ptr<Store> hold(const stdfs::path& path) {
    return Store::open(path, kRepository, kUrl, kNoFloor);
  }
  stdfs::path beside(const std::string& suffix) { return path_.string() + ".publish" + suffix; }

  TempDir dir_;
  stdfs::path path_ = dir_ / "store";
};

TEST_F(PublishStoreTest, IsTheStoreItselfIfNobodyHoldsIt) {
  {
    PublishStore opened = open();
    EXPECT_EQ(opened.store().path(), path_);
  }
  EXPECT_TRUE(stdfs::exists(path_));
  EXPECT_FALSE(stdfs::exists(beside("")));
}

TEST_F(PublishStoreTest, IsAPrivateOneIfADaemonHoldsTheStoreAndStaysForTheNextTime) {
  const auto daemon = hold(path_);
  {
    PublishStore opened = open();
    EXPECT_EQ(opened.store().path(), beside(""));
    opened.store().manifests().put_manifest(1, "kept");
  }
  PublishStore again = open();
  EXPECT_EQ(again.store().path(), beside(""));
  EXPECT_EQ(again.store().manifests().find_manifest(1), "kept");
}

TEST_F(PublishStoreTest, IsOneOfItsOwnIfBothAreHeldAndIsRemovedAtTheEnd) {
  const auto daemon = hold(path_);
  PublishStore first = open();
  const std::string pid = "-" + std::to_string(::getpid());
  {
    PublishStore second = open(), third = open();
    EXPECT_EQ(second.store().path(), beside(pid));
    EXPECT_EQ(third.store().path(), beside(pid + "-1"));
    PublishStore moved = std::move(third);
    EXPECT_TRUE(stdfs::exists(beside(pid + "-1")));
  }
  EXPECT_FALSE(stdfs::exists(beside(pid)));
  EXPECT_FALSE(stdfs::exists(beside(pid + "-1")));
  EXPECT_TRUE(stdfs::exists(beside("")));
}

TEST_F(PublishStoreTest, RemovesWhatKilledPublishersLeft) {
  const std::string dead = "-" + std::to_string(dead_pid());
  hold(beside(dead));
  hold(beside(dead + "-3"));
  stdfs::create_directories(beside(dead + "-4"));  // killed before it took the lock
  open();
  EXPECT_FALSE(stdfs::exists(beside(dead)));
  EXPECT_FALSE(stdfs::exists(beside(dead + "-3")));
  EXPECT_FALSE(stdfs::exists(beside(dead + "-4")));
}

TEST_F(PublishStoreTest, LeavesStoresAloneThatAreHeldOrWhoseOwnerLivesOrThatAreNoStores) {
  const pid_t dead = dead_pid();
  const auto other_container = beside("-" + std::to_string(dead));
  const auto held = hold(other_container);
  const auto living = beside("-" + std::to_string(::getppid()));
  hold(living);
  const auto foreign = beside("-notes"), numbered = beside("-" + std::to_string(dead) + "x");
  const auto full = beside("-" + std::to_string(dead) + "-7");
  write_text(foreign / "file", "x");
  write_text(numbered / "file", "x");
  write_text(full / "file", "x");
  open();
  for (const auto& path : {other_container, living, foreign, numbered, full}) {
    EXPECT_TRUE(stdfs::exists(path)) << path;
  }
}

TEST_F(PublishStoreTest, TakesAPathThatEndsInASlash) {
  const auto daemon = hold(path_);
  PublishStore opened = PublishStore::open(path_ / "", kRepository, kUrl, kNoFloor);
  EXPECT_EQ(opened.store().path(), beside(""));
}

TEST_F(PublishStoreTest, PassesOnWhatIsNotAboutTheLock) {
  write_text(path_ / "precious.txt", "x");
  EXPECT_EQ(error_of([&] { open(); }).code(), ErrorCode::invalid);
  EXPECT_TRUE(stdfs::exists(path_ / "precious.txt"));
}

}  // namespace
}  // namespace weightfs::test
