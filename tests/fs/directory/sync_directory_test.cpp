#include "fs/directory/sync_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/no_leases.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;
using test::code_of;
using test::read_text;
using test::read_tree;
using test::write_text;

constexpr std::int64_t kVersionTime = 1'790'000'000;

class SyncDirectoryTest : public testing::Test {
 protected:
  SyncDirectoryTest() { std::signal(SIGIO, SIG_IGN); }  // see nobody_reads

  std::unique_ptr<SyncDirectory> open(const std::string& follow = "latest",
                                      const std::string& repository = "0123") {
    return std::make_unique<SyncDirectory>(
        path_, repository, "file:///b", parse_follow(follow), keeps_,
        [this](std::uint64_t version) { return dir_ / "images" / std::to_string(version); });
  }

  /// A version with images in a store; its bytes tell its number.
  std::shared_ptr<const CatalogVersion> version(std::uint64_t number) {
    auto made = std::make_shared<CatalogVersion>();
    made->number = number;
    made->tag = "step-" + std::to_string(number);
    made->time = kVersionTime;
    made->directory = dir_ / "images" / std::to_string(number);
    const std::string config = "{\"version\": " + std::to_string(number) + "}";
    const std::string weights(10'000 + number, static_cast<char>('a' + number));
    made->entries = {{"", 0, true, 0, ImageState::complete},
                     {"config.json", 0, false, config.size(), ImageState::complete},
                     {"sub", 0, true, 0, ImageState::complete},
                     {"sub/w.bin", 2, false, weights.size(), ImageState::complete}};
    if (!stdfs::exists(made->directory)) {
      write_image(made->directory / "config.json", config);
      write_image(made->directory / "sub/w.bin", weights);
    }
    return made;
  }
  static void write_image(const stdfs::path& path, const std::string& text) {
    write_text(path, text);
    ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
  }

  std::shared_ptr<const Catalog> catalog(std::uint64_t latest,
                                         std::initializer_list<std::uint64_t> numbers) {
    auto made = std::make_shared<Catalog>();
    made->latest = latest;
    for (const std::uint64_t number : numbers) made->versions.emplace(number, version(number));
    return made;
  }
  void show(SyncDirectory& directory, std::uint64_t latest,
            std::initializer_list<std::uint64_t> numbers) {
    const auto shown = catalog(latest, numbers);
    const SyncDirectory::Shown found = directory.show([&] { return shown; }, {});
    EXPECT_EQ(found.catalog, shown);
    EXPECT_FALSE(found.error) << found.error->what();
  }

  [[nodiscard]] stdfs::path shown(std::uint64_t number) const {
    return path_ / "versions" / std::to_string(number);
  }
  void expect_whole(std::uint64_t number) {
    EXPECT_EQ(read_tree(shown(number)), read_tree(version(number)->directory)) << number;
  }
  void expect_latest(std::uint64_t number) {
    EXPECT_EQ(stdfs::read_symlink(path_ / "latest"), "versions/" + std::to_string(number));
    expect_whole(number);
  }
  [[nodiscard]] std::vector<std::string> names(const stdfs::path& path) const {
    std::vector<std::string> found;
    for (const auto& entry : stdfs::directory_iterator(path)) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  /// Nothing is left of what was made or removed.
  void expect_tidy() {
    EXPECT_EQ(names(path_ / ".weightfs/tmp"), std::vector<std::string>{});
    auto records = names(path_ / ".weightfs/versions");
    for (std::string& name : records) name.resize(name.size() - 5);  // ".json"
    EXPECT_EQ(records, names(path_ / "versions"));
  }

  /// A directory on another file system than the images; empty: there is none.
  [[nodiscard]] stdfs::path elsewhere() const {
    const stdfs::path memory = "/dev/shm";
    struct stat here {
    }, there{};
    if (::stat(memory.c_str(), &there) != 0 || ::access(memory.c_str(), W_OK) != 0 ||
        ::stat(dir_.path().c_str(), &here) != 0 || here.st_dev == there.st_dev) {
      return {};
    }
    return memory / ("weightfs-sync-" + std::to_string(::getpid()));
  }

  test::TempDir dir_;
  const stdfs::path path_ = dir_ / "models";
  std::function<bool(std::uint64_t)> keeps_;  // of the next open()
};

// ---- what it shows ----

TEST_F(SyncDirectoryTest, ShowsVersionsAsOrdinaryFiles) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  expect_latest(2);
  expect_whole(1);
  EXPECT_EQ(directory->latest(), 2u);
  EXPECT_EQ(directory->versions(), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_FALSE(directory->has_copies());
  EXPECT_EQ(names(path_), (std::vector<std::string>{".weightfs", "latest", "versions"}));
  expect_tidy();

  struct stat file {
  }, image{}, folder{};
  ASSERT_EQ(::stat((shown(2) / "sub/w.bin").c_str(), &file), 0);
  ASSERT_EQ(::stat((version(2)->directory / "sub/w.bin").c_str(), &image), 0);
  EXPECT_EQ(file.st_ino, image.st_ino);
  EXPECT_EQ(file.st_mode & 07777, 0444u);
  for (const stdfs::path& made : {shown(2), shown(2) / "sub"}) {
    ASSERT_EQ(::stat(made.c_str(), &folder), 0);
    EXPECT_EQ(folder.st_mode & 07777, 0755u);
    EXPECT_EQ(folder.st_mtim.tv_sec, kVersionTime);
  }
}

TEST_F(SyncDirectoryTest, AnEmptyCatalogShowsNothing) {
  const auto directory = open();
  show(*directory, 0, {});
  EXPECT_FALSE(stdfs::exists(stdfs::symlink_status(path_ / "latest")));
  EXPECT_EQ(directory->latest(), 0u);
}

TEST_F(SyncDirectoryTest, KeepsTheUmaskOutOfIt) {
  const mode_t before = ::umask(077);
  show(*open(), 1, {1});
  ::umask(before);
  struct stat folder {};
  for (const char* name : {"versions", "versions/1", "versions/1/sub", ".weightfs"}) {
    ASSERT_EQ(::stat((path_ / name).c_str(), &folder), 0);
    EXPECT_EQ(folder.st_mode & 07777, 0755u) << name;
  }
}

// A link could lead to what is half there.
TEST_F(SyncDirectoryTest, LatestStaysWhenTheNextVersionCannotBeMade) {
  const auto directory = open();
  show(*directory, 1, {1});
  const auto next = catalog(2, {1, 2});
  stdfs::remove(version(2)->directory / "sub/w.bin");
  EXPECT_EQ(code_of([&] { directory->show([&] { return next; }, {}); }), ErrorCode::not_found);
  expect_latest(1);
  EXPECT_FALSE(stdfs::exists(shown(2)));
  expect_tidy();
}

TEST_F(SyncDirectoryTest, AVersionThatFailsHoldsNoOtherBack) {
  const auto directory = open();
  const auto all = catalog(3, {1, 2, 3});
  stdfs::remove(version(1)->directory / "config.json");
  const SyncDirectory::Shown shown = directory->show([&] { return all; }, {});
  ASSERT_TRUE(shown.error);
  EXPECT_EQ(shown.error->code(), ErrorCode::not_found);
  expect_latest(3);
  expect_whole(2);
}

// Who waits for the others is told, and what is old makes room.
TEST_F(SyncDirectoryTest, AForeignVersionHoldsNothingElseBack) {
  const auto directory = open();
  show(*directory, 1, {1});
  write_text(shown(2) / "notes.txt", "a user's");
  const auto next = catalog(3, {2, 3});
  const SyncDirectory::Shown found = directory->show([&] { return next; }, {});
  ASSERT_TRUE(found.error);
  EXPECT_EQ(found.error->code(), ErrorCode::exists);
  expect_latest(3);
  EXPECT_EQ(found.catalog->latest, 3u);
  EXPECT_TRUE(found.catalog->versions.contains(3));
  EXPECT_FALSE(found.catalog->versions.contains(2)) << "it is not shown";
  EXPECT_FALSE(stdfs::exists(shown(1))) << "it is gone";
  EXPECT_EQ(read_text(shown(2) / "notes.txt"), "a user's");
}

TEST_F(SyncDirectoryTest, CopiesWhereItCannotLink) {
  const stdfs::path other = elsewhere();
  if (other.empty()) GTEST_SKIP() << "needs two file systems";
  {
    SyncDirectory directory(other, "0123", "file:///b");
    const auto all = catalog(1, {1});
    directory.show([&] { return all; }, {});
    EXPECT_TRUE(directory.has_copies());
    EXPECT_EQ(read_tree(other / "versions/1"), read_tree(version(1)->directory));
    struct stat file {
    }, image{};
    EXPECT_EQ(::stat((other / "versions/1/sub/w.bin").c_str(), &file), 0);
    EXPECT_EQ(::stat((version(1)->directory / "sub/w.bin").c_str(), &image), 0);
    EXPECT_EQ(file.st_mode, image.st_mode);
    EXPECT_EQ(file.st_mtim.tv_sec, image.st_mtim.tv_sec);
  }
  stdfs::remove_all(other);
}

/// Files cannot grow beyond so many bytes, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit now{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FileSizeLimit() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*const handler_)(int);
  rlimit before_{};
};

// It is tried again every second.
TEST_F(SyncDirectoryTest, ACopyThatFailsLeavesNothing) {
  const stdfs::path other = elsewhere();
  if (other.empty()) GTEST_SKIP() << "needs two file systems";
  {
    SyncDirectory directory(other, "0123", "file:///b");
    const auto all = catalog(1, {1});
    const stdfs::path image = version(1)->directory / "sub/w.bin";
    stdfs::remove(image);
    write_text(image, std::string(64 << 10, 'x'));
    for (int i = 0; i < 2; i++) {
      const FileSizeLimit limit(32 << 10);
      EXPECT_ANY_THROW(directory.show([&] { return all; }, {}));
      EXPECT_TRUE(stdfs::is_empty(other / ".weightfs/tmp"));
    }
    directory.show([&] { return all; }, {});
    EXPECT_EQ(read_tree(other / "versions/1"), read_tree(version(1)->directory));
  }
  stdfs::remove_all(other);
}

// ---- going back ----

TEST_F(SyncDirectoryTest, ALostStoreTakesNobodyBack) {
  show(*open(), 2, {1, 2});
  const auto directory = open();
  show(*directory, 1, {1});
  expect_latest(2);
}

TEST_F(SyncDirectoryTest, ALostStoreTakesNobodyBackWhoFollowsATag) {
  show(*open("step-2"), 2, {1, 2});
  const auto directory = open("step-2");
  show(*directory, 1, {1});
  expect_latest(2);
}

TEST_F(SyncDirectoryTest, WhoFollowsAnotherThingMayGoBack) {
  show(*open(), 2, {1, 2});
  show(*open("step-1"), 1, {1, 2});
  expect_latest(1);
  show(*open(), 2, {1, 2});
  show(*open("1"), 1, {1, 2});
  expect_latest(1);
  show(*open(), 2, {1, 2});
  expect_latest(2);
}

// ---- removing ----

TEST_F(SyncDirectoryTest, RemovesWhatTheCatalogDoesNotHave) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  show(*directory, 2, {2});
  EXPECT_FALSE(stdfs::exists(shown(1)));
  expect_latest(2);
  expect_tidy();
}

TEST_F(SyncDirectoryTest, ReleasesWhatNobodyReads) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  EXPECT_TRUE(directory->release(1));
  EXPECT_FALSE(stdfs::exists(shown(1)));
  EXPECT_TRUE(directory->release(1));  // it is not there any more
  expect_tidy();
}

TEST_F(SyncDirectoryTest, KeepsWhatIsOpen) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  {
    const File reader = File::open(shown(1) / "sub/w.bin", O_RDONLY);
    EXPECT_FALSE(directory->release(1));
    show(*directory, 2, {2});
    expect_whole(1);
  }
  EXPECT_TRUE(directory->release(1));
  EXPECT_FALSE(stdfs::exists(shown(1)));
}

TEST_F(SyncDirectoryTest, SaysWhyAVersionCannotBeRemoved) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  {
    const test::NoLeases none(CAP_TO_MASK(CAP_SETUID));
    if (!none.works()) GTEST_SKIP() << "needs root";
    test::NoLeases::give_away(shown(1) / "sub/w.bin");
    EXPECT_FALSE(directory->release(1));
    const std::string said = directory->refused_leases();
    EXPECT_NE(said.find("sub/w.bin: leases are refused"), said.npos) << said;
  }
  EXPECT_TRUE(directory->release(1));
  EXPECT_EQ(directory->refused_leases(), "");
}

TEST_F(SyncDirectoryTest, KeepsWhatItIsToldToKeep) {
  std::uint64_t kept = 1;
  keeps_ = [&kept](std::uint64_t version) { return version == kept; };
  const auto directory = open();
  show(*directory, 2, {1, 2});
  EXPECT_FALSE(directory->release(1));
  show(*directory, 3, {3});
  expect_whole(1);
  EXPECT_FALSE(stdfs::exists(shown(2)));
  kept = 0;
  EXPECT_TRUE(directory->release(1));
  EXPECT_FALSE(stdfs::exists(shown(1)));
}

// An engine's hook says that it wants what is `latest`, and looks at the link again: whoever
// removes that version looks at the link first.
TEST_F(SyncDirectoryTest, AsksWhatIsKeptAfterLatestHasMoved) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> asked;  // version, what was `latest`
  SyncDirectory* asker = nullptr;
  keeps_ = [&](std::uint64_t version) {
    asked.emplace_back(version, asker->latest());
    return false;
  };
  const auto directory = open();
  asker = directory.get();
  show(*directory, 1, {1});
  EXPECT_FALSE(directory->release(1));
  show(*directory, 2, {2});
  EXPECT_EQ(asked, (std::vector<std::pair<std::uint64_t, std::uint64_t>>{{1, 2}}));
}

TEST_F(SyncDirectoryTest, KnowsTheTagsOfItsVersions) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  EXPECT_EQ(directory->tag(1), "step-1");
  EXPECT_EQ(directory->tag(2), "step-2");
  EXPECT_EQ(directory->tag(3), "");
  write_text(path_ / ".weightfs/versions/2.json", "{\"entries\": []}");  // of an older weightfs
  EXPECT_EQ(directory->tag(2), "");
}

TEST_F(SyncDirectoryTest, NeverReleasesLatest) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  EXPECT_FALSE(directory->release(2));
  expect_latest(2);
}

// ---- files of others ----

TEST_F(SyncDirectoryTest, RefusesADirectoryThatIsNotItsOwn) {
  write_text(path_ / "notes.txt", "mine");
  std::string message;
  EXPECT_EQ(code_of([&] { open(); }, &message), ErrorCode::invalid);
  EXPECT_NE(message.find("notes.txt"), std::string::npos) << message;
  EXPECT_EQ(names(path_), std::vector<std::string>{"notes.txt"});
}

TEST_F(SyncDirectoryTest, RefusesAnotherRepositorysDirectory) {
  show(*open(), 1, {1});
  EXPECT_EQ(code_of([&] { open("latest", "4567"); }), ErrorCode::invalid);
  expect_latest(1);
}

TEST_F(SyncDirectoryTest, IsHeldByOneAtATime) {
  const auto directory = open();
  std::string message;
  EXPECT_EQ(code_of([&] { open(); }, &message), ErrorCode::busy);
  EXPECT_NE(message.find(std::to_string(::getpid())), std::string::npos) << message;
}

TEST_F(SyncDirectoryTest, LeavesFilesOfOthersAlone) {
  show(*open(), 1, {1});
  write_text(path_ / "notes.txt", "mine");
  write_text(path_ / "versions/mine/a", "b");
  write_text(path_ / "versions/7/a", "b");
  const auto directory = open();
  show(*directory, 2, {2});
  show(*directory, 3, {3});
  EXPECT_EQ(read_text(path_ / "notes.txt"), "mine");
  EXPECT_EQ(read_text(path_ / "versions/mine/a"), "b");
  EXPECT_EQ(read_text(path_ / "versions/7/a"), "b");
  EXPECT_TRUE(directory->release(7));  // nothing of ours
  EXPECT_EQ(read_text(path_ / "versions/7/a"), "b");
}

TEST_F(SyncDirectoryTest, DoesNotTakeOverAVersionOfSomebodyElse) {
  const auto directory = open();
  show(*directory, 1, {1});
  write_text(path_ / "versions/2/a", "b");
  const auto next = catalog(2, {1, 2});
  EXPECT_EQ(code_of([&] { directory->show([&] { return next; }, {}); }), ErrorCode::exists);
  expect_latest(1);
  EXPECT_EQ(read_tree(shown(2)).size(), 1u);
  stdfs::remove_all(shown(2));
  show(*directory, 2, {1, 2});
  expect_latest(2);
}

TEST_F(SyncDirectoryTest, FilesBesideThoseOfAVersionStayWhenItGoes) {
  const auto directory = open();
  show(*directory, 2, {1, 2});
  write_text(shown(1) / "sub/mine", "mine");
  EXPECT_TRUE(directory->release(1));
  EXPECT_EQ(read_tree(shown(1)), (std::map<std::string, std::string>{{"sub/mine", "mine"}}));
  show(*directory, 2, {2});
  EXPECT_EQ(read_text(shown(1) / "sub/mine"), "mine");
}

TEST_F(SyncDirectoryTest, RefusesALatestThatIsNoLink) {
  open();
  write_text(path_ / "latest", "mine");
  EXPECT_EQ(code_of([&] { open(); }), ErrorCode::exists);
  EXPECT_EQ(read_text(path_ / "latest"), "mine");
}

// ---- what a killed process left ----

TEST_F(SyncDirectoryTest, ThrowsAwayWhatWasBeingMade) {
  show(*open(), 1, {1});
  write_text(path_ / ".weightfs/tmp/new-0123/config.json", "half");
  write_text(path_ / ".weightfs/.status.0123", "half");
  write_text(path_ / ".weightfs/versions/.2.json.0123", "half");
  show(*open(), 2, {1, 2});
  expect_latest(2);
  expect_tidy();
  EXPECT_FALSE(stdfs::exists(path_ / ".weightfs/.status.0123"));
}

TEST_F(SyncDirectoryTest, ARecordWithoutItsVersionIsForgotten) {
  show(*open(), 2, {1, 2});
  stdfs::rename(shown(1), path_ / ".weightfs/tmp/new-0123");
  const auto directory = open();
  EXPECT_EQ(directory->versions(), (std::vector<std::uint64_t>{2}));
  expect_tidy();
}

TEST_F(SyncDirectoryTest, EndsARemoval) {
  show(*open(), 2, {1, 2});
  stdfs::rename(shown(1), path_ / ".weightfs/tmp/removed-1");
  stdfs::remove(path_ / ".weightfs/tmp/removed-1/config.json");
  const auto directory = open();
  EXPECT_EQ(directory->versions(), (std::vector<std::uint64_t>{2}));
  expect_tidy();
}

TEST_F(SyncDirectoryTest, AVersionWithoutTheLinkGetsIt) {
  show(*open(), 2, {1, 2});
  stdfs::remove(path_ / "latest");
  show(*open(), 2, {1, 2});
  expect_latest(2);
}

TEST_F(SyncDirectoryTest, MendsAVersionThatLostFiles) {
  show(*open(), 2, {1, 2});
  stdfs::remove_all(shown(2) / "sub");
  stdfs::remove(shown(1) / "config.json");
  write_text(shown(1) / "config.json", "another size");
  show(*open(), 2, {1, 2});
  expect_latest(2);
  expect_whole(1);
}

TEST_F(SyncDirectoryTest, BeginsAgainWhereTheFirstOneWasKilled) {
  write_text(path_ / ".weightfs/lock", "1\n");
  write_text(path_ / ".weightfs/.sync.0123", "half");
  show(*open(), 1, {1});
  expect_latest(1);
}

// ---- from outside ----

TEST_F(SyncDirectoryTest, IsFoundAndSaysWhetherItRuns) {
  EXPECT_FALSE(find_sync_directory(path_).has_value());
  auto directory = open();
  auto found = find_sync_directory(path_);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, stdfs::canonical(path_));
  EXPECT_EQ(found->url, "file:///b");
  EXPECT_EQ(found->repository, "0123");
  EXPECT_TRUE(found->is_running);
  EXPECT_EQ(found->pid, std::to_string(::getpid()));
  EXPECT_GT(found->stated, 0) << "when its process began";
  directory.reset();
  found = find_sync_directory(path_);
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(found->is_running);
  EXPECT_EQ(found->pid, "");
  EXPECT_FALSE(find_sync_directory(dir_.path()).has_value());
}

TEST_F(SyncDirectoryTest, SaysWhenItsStatusWasWritten) {
  const auto directory = open();
  const std::int64_t before = seconds_now();
  directory->write_status("one");
  const std::int64_t stated = find_sync_directory(path_)->stated;
  EXPECT_GE(stated, before);
  EXPECT_LE(stated, seconds_now());
}

TEST_F(SyncDirectoryTest, AStatusThatCannotBeWrittenLeavesNothing) {
  const auto directory = open();
  directory->write_status("one");
  {
    const FileSizeLimit limit(1);
    EXPECT_ANY_THROW(directory->write_status("two"));
  }
  expect_tidy();
  EXPECT_EQ(read_text(path_ / ".weightfs/status"), "one");
  // Who looks whether this process hangs sees that it does not.
  const timespec long_ago[]{{1, 0}, {1, 0}};
  for (const char* const name : {"status", "lock"}) {
    const auto path = path_ / ".weightfs" / name;
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  }
  EXPECT_EQ(find_sync_directory(path_)->stated, 1);
  const std::int64_t before = seconds_now();
  directory->note_alive();
  EXPECT_GE(find_sync_directory(path_)->stated, before);
}

TEST_F(SyncDirectoryTest, ReplacesItsStatus) {
  const auto directory = open();
  directory->write_status("one");
  directory->write_status("two");
  EXPECT_EQ(read_text(path_ / ".weightfs/status"), "two");
  expect_tidy();
}

}  // namespace
}  // namespace weightfs::fs
