#include "store/staging/staging.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/os/lease.hpp"
#include "store/staging/records.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/staging_history.hpp"
#include "tests/support/staging_support.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::code_of;
using test::errno_of;
using test::paths_of;
using test::TempDir;
using test::tree_text;

constexpr Caller kStagingUser{1000, 100};
constexpr timespec kLongAgo{1'000'000'000, 5};

constexpr std::uint64_t kStagingPlenty = 1ull << 40;
constexpr std::uint64_t kStagingTooLittle = kRecordsFloorBytes - 1;

// Passes on to a database; fails on demand, and counts.
class TestDb final : public Db {
 public:
  explicit TestDb(std::unique_ptr<Db> db) : db_(std::move(db)) {}
  [[nodiscard]] std::optional<std::string> find(ColumnFamily family,
                                                std::string_view key) const override {
    return db_->find(family, key);
  }
  void scan(ColumnFamily family, std::string_view prefix,
            const std::function<void(std::string_view, std::string_view)>& each) const override {
    db_->scan(family, prefix, each);
  }
  void write(const std::vector<Change>& changes, Durability durability) override {
    if (fails) throw Error(ErrorCode::io, "on demand");
    db_->write(changes, durability);
    (durability == Durability::power ? synced_writes : writes)++;
  }
  void sync() override {
    if (fails_to_sync) throw Error(ErrorCode::io, "on demand");
    db_->sync();
    syncs++;
  }
  std::atomic<bool> fails = false, fails_to_sync = false;
  std::atomic<unsigned> writes = 0, synced_writes = 0, syncs = 0;

 private:
  std::unique_ptr<Db> db_;
};

// A staging on a database whose free space the test decides.
struct StagingFixture {
  TempDir parent;
  std::atomic<std::uint64_t> free_bytes = kStagingPlenty;
  std::function<void(std::uint64_t)> make_room;
  std::unique_ptr<TestDb> db;
  std::unique_ptr<Staging> staging;

  StagingFixture() { reopen(); }
  void reopen() {
    close();
    open_db();
    staging = std::make_unique<Staging>(*db, directory(), StagingOptions{make_room, {0, 0}});
  }
  void open_db() {
    db = std::make_unique<TestDb>(Db::open(parent / "db", [this] { return free_bytes.load(); }));
  }
  void close() {
    staging.reset();
    db.reset();
  }
  [[nodiscard]] fs::path directory() const { return parent / "staging"; }
  [[nodiscard]] fs::path bytes_of(StagingId id) const { return directory() / std::to_string(id); }

  StagingId file(StagingId parent_id, std::string_view name, std::string_view bytes = "") {
    const StagingId id = staging->make_file(parent_id, name, 0600, kStagingUser);
    if (!bytes.empty()) test::write_text(bytes_of(id), bytes);
    return id;
  }
  StagingId dir(StagingId parent_id, std::string_view name) {
    return staging->make_directory(parent_id, name, 0755, kStagingUser);
  }
  // A directory with a file and a nested file: ids of the three.
  struct Checkpoint {
    StagingId directory, weights, nested, extra;
  };
  Checkpoint checkpoint(StagingId parent_id, std::string_view name) {
    const StagingId directory = dir(parent_id, name);
    const StagingId sub = dir(directory, "sub");
    return {directory, file(directory, "model.safetensors", "weights"),
            file(sub, "adapter.safetensors", "adapter"), file(sub, "optimizer.pt", "optimizer")};
  }
  // The tree, and that a new process has the same.
  void expect_survives() {
    const std::string before = tree_text(*staging);
    reopen();
    EXPECT_EQ(tree_text(*staging), before);
  }
};

// ---- names ----

TEST(Staging, StartsWithTwoEmptyRoots) {
  StagingFixture at;
  for (const StagingId root : {kStagingRoot, kPublishRoot}) {
    const struct stat attributes = at.staging->attributes(root);
    EXPECT_EQ(attributes.st_mode, S_IFDIR | 0755u);
    EXPECT_EQ(attributes.st_ino, root);
    EXPECT_EQ(attributes.st_nlink, 2u);
    EXPECT_EQ(at.staging->parent_of(root), root);
    EXPECT_FALSE(at.staging->top_of(root));
  }
  EXPECT_EQ(at.staging->path_of(kStagingRoot), "staging");
  EXPECT_EQ(at.staging->path_of(kPublishRoot), "publish");
  EXPECT_EQ(paths_of(*at.staging), std::vector<std::string>{});
}

TEST(Staging, KeepsNamesAttributesAndBytesOverARestart) {
  StagingFixture at;
  const StagingId run = at.dir(kStagingRoot, "run");
  const StagingId file = at.file(run, "model.safetensors", "weights");
  at.staging->make_symlink(run, "latest", "model.safetensors", kStagingUser);
  at.staging->change(file, {.mode = 0640, .uid = 7, .gid = 8, .mtime = kLongAgo});
  at.staging->change(run, {.mode = 01750, .atime = kLongAgo, .mtime = kLongAgo});
  at.expect_survives();
  EXPECT_EQ(at.staging->lookup(run, "model.safetensors"), file);
  const struct stat attributes = at.staging->attributes(file);
  EXPECT_EQ(attributes.st_mode, S_IFREG | 0640u);
  EXPECT_EQ(attributes.st_uid, 7u);
  EXPECT_EQ(attributes.st_gid, 8u);
  EXPECT_EQ(attributes.st_size, 7);
  EXPECT_EQ(attributes.st_mtim.tv_sec, kLongAgo.tv_sec);
  EXPECT_EQ(at.staging->attributes(run).st_mode, S_IFDIR | 01750u);
  EXPECT_EQ(at.staging->attributes(run).st_mtim.tv_nsec, kLongAgo.tv_nsec);
  EXPECT_EQ(at.staging->read_link(at.staging->lookup(run, "latest")), "model.safetensors");
  EXPECT_EQ(test::read_text(at.staging->backing_path(file)), "weights");
  EXPECT_EQ(fs::status(at.bytes_of(file)).permissions(),
            fs::perms::owner_read | fs::perms::owner_write)
      << "the daemon's own";
}

TEST(Staging, TakesEveryNameThatADirectoryTakes) {
  StagingFixture at;
  std::string all;
  for (int c = 1; c < 256; c++) {
    if (c != '/') all += static_cast<char>(c);
  }
  for (const std::string& name :
       {all, std::string(255, '\xFF'), std::string("..."), std::string("a b"), std::string("\n")}) {
    EXPECT_EQ(at.staging->lookup(kStagingRoot, name), at.file(kStagingRoot, name)) << name;
  }
  at.expect_survives();
  EXPECT_EQ(errno_of([&] { at.file(kStagingRoot, std::string(256, 'x')); }), ENAMETOOLONG);
  EXPECT_EQ(errno_of([&] { (void)at.staging->lookup(kStagingRoot, std::string(256, 'x')); }),
            ENAMETOOLONG);
  for (const std::string& name : {std::string(""), std::string("."), std::string(".."),
                                  std::string("a/b"), std::string("a\0b", 3)}) {
    EXPECT_EQ(errno_of([&] { at.dir(kStagingRoot, name); }), EINVAL) << name;
  }
  EXPECT_EQ(errno_of([&] {
              at.staging->make_symlink(kStagingRoot, "l", std::string(4096, 'x'), kStagingUser);
            }),
            ENAMETOOLONG);
  const StagingId link =
      at.staging->make_symlink(kStagingRoot, "l", std::string(4095, 'x'), kStagingUser);
  EXPECT_EQ(at.staging->attributes(link).st_size, 4095);
}

TEST(Staging, TellsAnInodeThatIsGoneFromADirectoryThatWasRemoved) {
  StagingFixture at;
  const StagingId directory = at.dir(kStagingRoot, "a"), file = at.file(kStagingRoot, "f");
  at.staging->remove_directory(kStagingRoot, "a");
  EXPECT_EQ(errno_of([&] { (void)at.staging->lookup(directory, "x"); }), ENOENT);
  EXPECT_EQ(errno_of([&] { at.file(directory, "x"); }), ENOENT);
  EXPECT_EQ(errno_of([&] { at.dir(directory, "x"); }), ENOENT);
  EXPECT_EQ(errno_of([&] { at.staging->rename(kStagingRoot, "f", directory, "f", 0); }), ENOENT);
  EXPECT_EQ(errno_of([&] { (void)at.staging->attributes(1u << 30); }), ESTALE);
  EXPECT_EQ(errno_of([&] { (void)at.staging->lookup(1u << 30, "x"); }), ESTALE);
  EXPECT_EQ(errno_of([&] { at.staging->open(1u << 30, false); }), ESTALE);
  EXPECT_EQ(errno_of([&] { (void)at.staging->lookup(file, "x"); }), ENOTDIR);
  EXPECT_FALSE(at.staging->release(1u << 30, true));
}

TEST(Staging, KeepsRemovedDirectoriesForThoseWhoHaveThemOpenOrWorkInThem) {
  StagingFixture at;
  const StagingId directory = at.dir(kStagingRoot, "a");
  at.staging->open(directory, false);
  at.staging->remove_directory(kStagingRoot, "a");
  at.staging->release(directory, false);
  EXPECT_EQ(at.staging->attributes(directory).st_nlink, 0u);
  EXPECT_EQ(errno_of([&] { at.file(directory, "x"); }), ENOENT);
  EXPECT_EQ(at.staging->path_of(directory), "");
  AttributeChange closed;
  closed.mode = 0700;
  at.staging->change(directory, closed);
  EXPECT_EQ(at.staging->attributes(directory).st_mode & 07777, 0700u);
  at.staging->sync_directory(directory);
  bool is_empty = true;
  at.staging->read_directory(directory, 0, [&](const StagingName&) { return is_empty = false; });
  EXPECT_TRUE(is_empty);
}

TEST(Staging, ForgetsRemovedDirectoriesAfterManyOthers) {
  StagingFixture at;
  const StagingId first = at.dir(kStagingRoot, "a");
  at.staging->remove_directory(kStagingRoot, "a");
  for (int i = 0; i < 4096; i++) {
    at.dir(kStagingRoot, "b");
    at.staging->remove_directory(kStagingRoot, "b");
  }
  EXPECT_EQ(errno_of([&] { (void)at.staging->attributes(first); }), ESTALE);
}

TEST(Staging, ListsEveryNameOnceWhileOthersComeAndGo) {
  StagingFixture at;
  for (int i = 0; i < 1000; i++) at.dir(kStagingRoot, "name-" + std::to_string(i));
  std::vector<std::string> seen;
  std::uint64_t offset = 0;
  for (int round = 0; offset != UINT64_MAX; round++) {
    const std::string fresh = "fresh-" + std::to_string(round);
    at.dir(kStagingRoot, fresh);
    at.staging->remove_directory(kStagingRoot, fresh);
    if (round == 0) at.staging->remove_directory(kStagingRoot, "name-999");
    const std::uint64_t from = offset;
    offset = UINT64_MAX;
    std::size_t count = 0;
    at.staging->read_directory(kStagingRoot, from, [&](const StagingName& name) {
      if (count++ == 7) return false;
      EXPECT_GE(name.next, 16u);
      // It may look at the tree itself.
      EXPECT_EQ(at.staging->lookup(kStagingRoot, name.name), name.id);
      seen.push_back(name.name);
      offset = name.next;
      return true;
    });
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_TRUE(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  EXPECT_EQ(seen.size(), 999u);
}

TEST(Staging, HandsTheGroupOfASetgidDirectoryOn) {
  StagingFixture at;
  const StagingId shared = at.dir(kStagingRoot, "shared");
  at.staging->change(shared, {.mode = 02775, .gid = 77});
  const struct stat file = at.staging->attributes(at.file(shared, "f"));
  const struct stat sub = at.staging->attributes(at.dir(shared, "d"));
  EXPECT_EQ(file.st_gid, 77u);
  EXPECT_EQ(file.st_mode, S_IFREG | 0600u);
  EXPECT_EQ(sub.st_gid, 77u);
  EXPECT_EQ(sub.st_mode, S_IFDIR | 02755u);
}

TEST(Staging, NeverGivesAnIdOutTwice) {
  StagingFixture at;
  StagingId last = 0;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 3000; i++) {
      const StagingId id = at.dir(kStagingRoot, "d");
      EXPECT_GT(id, last);
      last = id;
      at.staging->remove_directory(kStagingRoot, "d");
    }
    at.reopen();
  }
}

TEST(Staging, KnowsWhereAnInodeIs) {
  StagingFixture at;
  const StagingId run = at.dir(kStagingRoot, "run"), step = at.dir(run, "step");
  const StagingId file = at.file(step, "f");
  EXPECT_EQ(at.staging->parent_of(file), step);
  EXPECT_EQ(at.staging->path_of(file), "staging/run/step/f");
  const auto top = at.staging->top_of(file);
  ASSERT_TRUE(top);
  EXPECT_EQ(top->root, kStagingRoot);
  EXPECT_EQ(top->id, run);
  EXPECT_EQ(top->name, "run");
  EXPECT_EQ(top->path, "step/f");
  EXPECT_EQ(at.staging->top_of(run)->path, "");
  at.staging->open(file, false);
  at.staging->unlink(step, "f");
  EXPECT_EQ(at.staging->path_of(file), "");
  EXPECT_FALSE(at.staging->top_of(file));
  EXPECT_EQ(errno_of([&] { (void)at.staging->parent_of(file); }), ENOENT);
}

TEST(Staging, SumsUpWhatItHolds) {
  StagingFixture at;
  const auto first = at.checkpoint(kStagingRoot, "a");
  const auto second = at.checkpoint(kStagingRoot, "b");
  at.staging->change(first.weights, {.mtime = timespec{4'000'000'000, 0}});
  at.staging->hand_over(second.directory, "step-1", {});
  const StagingSummary summary = at.staging->summary();
  ASSERT_EQ(summary.tops.size(), 2u);
  EXPECT_EQ(summary.tops[0].name, "a");
  EXPECT_FALSE(summary.tops[0].is_handed_over);
  EXPECT_EQ(summary.tops[0].files, 3u);
  EXPECT_EQ(summary.tops[0].changed_time, 4'000'000'000);
  EXPECT_EQ(summary.tops[1].name, "step-1");
  EXPECT_TRUE(summary.tops[1].is_handed_over);
  EXPECT_GT(summary.tops[1].changed_time, 1'700'000'000);
  EXPECT_EQ(summary.files, 6u);
  EXPECT_EQ(summary.bytes, summary.tops[0].bytes + summary.tops[1].bytes);
  EXPECT_GT(summary.bytes, 0u);
}

TEST(Staging, MakesTenThousandFilesQuickly) {
  StagingFixture at;
  const auto begin = Clock::now();
  for (int i = 0; i < 10'000; i++) at.file(kStagingRoot, std::to_string(i));
  const auto made = Clock::now();
  for (int i = 0; i < 10'000; i++) at.staging->unlink(kStagingRoot, std::to_string(i));
  const auto removed = Clock::now();
  const auto each = [](auto duration) {
    return std::chrono::duration<double, std::micro>(duration).count() / 10'000;
  };
  std::printf("make %.1f us, unlink %.1f us a file\n", each(made - begin), each(removed - made));
  EXPECT_LE(at.db->writes, 20'010u) << "more than one write for each";
}

// ---- files ----

// The ids that have bytes on disk.
std::vector<std::string> backing_of(const StagingFixture& at) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(at.directory())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Waits until those are the ones, which takes a sync of the records.
void expect_backing(const StagingFixture& at, std::vector<std::string> names) {
  const auto until = Clock::now() + std::chrono::minutes(1);
  while (backing_of(at) != names && Clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(backing_of(at), names);
}

TEST(Staging, KeepsAnUnlinkedFileUntilItsLastRelease) {
  StagingFixture at;
  const StagingId file = at.file(kStagingRoot, "f", "bytes");
  at.staging->open(file, false);
  at.staging->open(file, true);
  at.staging->unlink(kStagingRoot, "f");
  EXPECT_EQ(at.staging->attributes(file).st_nlink, 0u);
  at.staging->change(file, {.mode = 0640, .size_bytes = 3});
  EXPECT_EQ(at.staging->attributes(file).st_mode, S_IFREG | 0640u);
  at.staging->open(file, false);  // /proc/self/fd
  EXPECT_EQ(test::read_text(at.staging->backing_path(file)), "byt");
  EXPECT_TRUE(at.staging->release(file, true));
  at.staging->release(file, false);
  EXPECT_TRUE(fs::exists(at.bytes_of(file)));
  at.staging->release(file, false);
  expect_backing(at, {});
  EXPECT_EQ(errno_of([&] { (void)at.staging->attributes(file); }), ESTALE);
  EXPECT_EQ(errno_of([&] { (void)at.staging->backing_path(file); }), ESTALE);
}

TEST(Staging, KeepsAReplacedFileUntilItsLastRelease) {
  StagingFixture at;
  const StagingId old_file = at.file(kStagingRoot, "f", "old");
  const StagingId fresh = at.file(kStagingRoot, ".tmp", "fresh");
  at.staging->open(old_file, false);
  at.staging->open(fresh, true);
  at.staging->rename(kStagingRoot, ".tmp", kStagingRoot, "f", 0);
  EXPECT_EQ(at.staging->lookup(kStagingRoot, "f"), fresh);
  EXPECT_EQ(test::read_text(at.staging->backing_path(old_file)), "old");
  EXPECT_EQ(at.staging->attributes(old_file).st_nlink, 0u);
  at.staging->release(old_file, false);
  expect_backing(at, {std::to_string(fresh)});
  at.staging->release(fresh, true);
  at.expect_survives();
}

TEST(Staging, RemovesBytesOnceTheRecordsAreSynced) {
  StagingFixture at;
  at.file(kStagingRoot, "f", "old");
  const StagingId fresh = at.file(kStagingRoot, ".tmp", "fresh");
  at.staging->sync_directory(kStagingRoot);
  const unsigned syncs = at.db->syncs;
  at.staging->rename(kStagingRoot, ".tmp", kStagingRoot, "f", 0);
  expect_backing(at, {std::to_string(fresh)});
  EXPECT_GT(at.db->syncs, syncs);
}

TEST(Staging, KeepsBytesWhileTheRecordsCannotBeSynced) {
  StagingFixture at;
  const StagingId old_file = at.file(kStagingRoot, "f", "old");
  at.file(kStagingRoot, ".tmp", "fresh");
  at.db->fails_to_sync = true;
  at.staging->rename(kStagingRoot, ".tmp", kStagingRoot, "f", 0);
  at.staging.reset();  // tries once more
  EXPECT_TRUE(fs::exists(at.bytes_of(old_file)));
  at.reopen();
  EXPECT_FALSE(fs::exists(at.bytes_of(old_file)));
  EXPECT_EQ(paths_of(*at.staging), std::vector<std::string>{"staging/f"});
}

TEST(Staging, CountsWritersAndGenerations) {
  StagingFixture at;
  const StagingId file = at.file(kStagingRoot, "f");
  auto changes = [&, last = at.staging->generation(file)]() mutable {
    return std::exchange(last, at.staging->generation(file)) != last;
  };
  at.staging->open(file, false);
  EXPECT_FALSE(at.staging->release(file, false)) << "a reader";
  EXPECT_FALSE(changes());
  at.staging->open(file, true);
  EXPECT_TRUE(changes());
  at.staging->open(file, true);
  EXPECT_FALSE(at.staging->release(file, true));
  changes();
  at.staging->prepare_write(file, 0, 10);
  EXPECT_TRUE(changes());
  EXPECT_TRUE(at.staging->release(file, true));
  EXPECT_TRUE(changes()) << "it may have written until then";
  at.staging->change(file, {.size_bytes = 5});
  EXPECT_TRUE(changes());
  at.staging->allocate(file, 0, 0, 5);
  EXPECT_TRUE(changes());
  at.staging->change(file, {.mode = 0600});
  EXPECT_FALSE(changes());
}

TEST(Staging, RefusesToUseTheBytesOfWhatHasNone) {
  StagingFixture at;
  const StagingId directory = at.dir(kStagingRoot, "d");
  const StagingId link = at.staging->make_symlink(kStagingRoot, "l", "x", kStagingUser);
  const auto expect = [&](const std::function<void(StagingId)>& use) {
    EXPECT_EQ(errno_of([&] { use(directory); }), EISDIR);
    EXPECT_EQ(errno_of([&] { use(link); }), EINVAL);
  };
  expect([&](StagingId id) { at.staging->open(id, true); });
  expect([&](StagingId id) { at.staging->change(id, {.size_bytes = 0}); });
  expect([&](StagingId id) { at.staging->allocate(id, 0, 0, 1); });
  expect([&](StagingId id) { at.staging->prepare_write(id, 0, 1); });
  expect([&](StagingId id) { (void)at.staging->backing_path(id); });
  EXPECT_EQ(errno_of([&] { (void)at.staging->read_link(directory); }), EINVAL);
}

TEST(Staging, AnswersAsTheFileSystemBelowDoes) {
  StagingFixture at;
  const StagingId file = at.file(kStagingRoot, "f");
  EXPECT_EQ(errno_of([&] { at.staging->change(file, {.size_bytes = UINT64_MAX}); }), EINVAL);
  EXPECT_EQ(errno_of([&] { at.staging->allocate(file, 0, 0, 0); }), EINVAL);
  EXPECT_EQ(errno_of([&] { at.staging->allocate(file, 1 << 20, 0, 1); }), EOPNOTSUPP);
  EXPECT_EQ(errno_of([&] { at.staging->rename(kStagingRoot, "f", kStagingRoot, "g", 8); }), EINVAL);
}

TEST(Staging, SyncsRecordsOnlyWhenThereAreSome) {
  StagingFixture at;
  const StagingId file = at.file(kStagingRoot, "f");
  at.staging->sync_file(file, true);
  const unsigned syncs = at.db->syncs;
  EXPECT_GE(syncs, 1u);
  at.staging->sync_file(file, false);
  EXPECT_EQ(at.db->syncs, syncs) << "nothing was changed";
  at.staging->change(file, {.mode = 0644});
  at.staging->sync_directory(kStagingRoot);
  EXPECT_EQ(at.db->syncs, syncs + 1);
}

// ---- space ----

TEST(Staging, AsksForRoomWhenAFileGrows) {
  StagingFixture at;
  std::vector<std::uint64_t> asked;
  at.make_room = [&](std::uint64_t bytes) { asked.push_back(bytes); };
  at.reopen();
  const auto expect = [&](const std::vector<std::uint64_t>& amounts) {
    EXPECT_EQ(std::exchange(asked, {}), amounts);
  };
  const StagingId file = at.file(kStagingRoot, "f");
  expect({0});
  at.staging->change(file, {.size_bytes = 1000});
  expect({1000});
  at.staging->change(file, {.size_bytes = 1500});
  expect({500});
  at.staging->change(file, {.size_bytes = 1000});
  expect({});
  at.staging->allocate(file, 0, 0, 4096);
  expect({4096});
  at.staging->allocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
  expect({});
  at.staging->prepare_write(file, 0, 4096);
  expect({});
  at.staging->prepare_write(file, 4000, 200);
  expect({104});
  at.staging->prepare_write(file, 1 << 20, 200);
  expect({200});
}

TEST(Staging, ChangesNothingWhereThereIsNoRoom) {
  StagingFixture at;
  bool is_full = false;
  at.make_room = [&](std::uint64_t) {
    if (is_full) throw Error(ErrorCode::no_space, "full");
  };
  at.reopen();
  const StagingId file = at.file(kStagingRoot, "f", "bytes");
  at.staging->sync_directory(kStagingRoot);
  is_full = true;
  const std::string before = tree_text(*at.staging);
  EXPECT_EQ(errno_of([&] { at.file(kStagingRoot, "g"); }), ENOSPC);
  EXPECT_EQ(errno_of([&] { at.staging->change(file, {.size_bytes = 1 << 20}); }), ENOSPC);
  EXPECT_EQ(errno_of([&] { at.staging->allocate(file, 0, 0, 4096); }), ENOSPC);
  EXPECT_EQ(errno_of([&] { at.staging->prepare_write(file, 5, 1); }), ENOSPC);
  EXPECT_EQ(tree_text(*at.staging), before);
  EXPECT_EQ(backing_of(at).size(), 1u);
  const StagingId directory = at.dir(kStagingRoot, "d");
  at.staging->hand_over(directory, "d", {});
  EXPECT_FALSE(at.staging->list(kStagingRoot)[0].writers) << "a refused one has let go";
}

TEST(Staging, RemovesWhatIsUnusedBeforeItSaysThatThereIsNoRoom) {
  StagingFixture at;
  at.make_room = [&](std::uint64_t) {
    if (!backing_of(at).empty()) throw Error(ErrorCode::no_space, "full");
  };
  at.reopen();
  at.file(kStagingRoot, "f");
  EXPECT_EQ(errno_of([&] { at.file(kStagingRoot, "g"); }), ENOSPC);
  at.staging->unlink(kStagingRoot, "f");
  at.file(kStagingRoot, "g");
}

// Every call that writes a record.
std::vector<std::function<void(Staging&)>> recorded_calls(const StagingFixture::Checkpoint& c) {
  return {
      [=](Staging& s) { s.make_file(c.directory, "fresh", 0600, kStagingUser); },
      [=](Staging& s) { s.make_directory(c.directory, "fresh", 0700, kStagingUser); },
      [=](Staging& s) { s.make_symlink(c.directory, "fresh", "x", kStagingUser); },
      [=](Staging& s) { s.remove_directory(kStagingRoot, "empty"); },
      [=](Staging& s) { s.rename(kStagingRoot, "a", kStagingRoot, "b", 0); },
      [=](Staging& s) { s.rename(kStagingRoot, "f", kStagingRoot, "g", 0); },
      [=](Staging& s) { s.rename(kStagingRoot, "f", kStagingRoot, "a", RENAME_EXCHANGE); },
      [=](Staging& s) { s.change(c.weights, {.mode = 0640}); },
      [=](Staging& s) { s.change(c.directory, {.mtime = kLongAgo}); },
      [=](Staging& s) { s.hand_over(c.directory, "step", {}); },
  };
}

TEST(Staging, ChangesNothingIfTheRecordCannotBeWritten) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.dir(kStagingRoot, "empty");
  at.file(kStagingRoot, "f", "f");
  const StagingId open_file = at.file(kStagingRoot, "g", "g");
  at.staging->open(open_file, false);
  const std::string before = tree_text(*at.staging);
  const std::vector<std::string> backing = backing_of(at);
  auto calls = recorded_calls(c);
  calls.emplace_back([](Staging& s) { s.unlink(kStagingRoot, "g"); });  // open: not emptied
  for (std::size_t i = 0; i < calls.size(); i++) {
    at.db->fails = true;
    EXPECT_EQ(code_of([&] { calls[i](*at.staging); }), ErrorCode::io) << i;
    at.db->fails = false;
    at.free_bytes = kStagingTooLittle;
    EXPECT_EQ(code_of([&] { calls[i](*at.staging); }), ErrorCode::no_space) << i;
    at.free_bytes = kStagingPlenty;
    EXPECT_EQ(tree_text(*at.staging), before) << i;
    EXPECT_EQ(backing_of(at), backing) << i;
  }
  at.expect_survives();
}

TEST(Staging, FreesTheBytesFirstWhenAFileIsUnlinkedOnAFullDisk) {
  StagingFixture at;
  const std::string bytes(100'000, 'x');
  const StagingId file = at.file(kStagingRoot, "f", bytes);
  const StagingId other = at.file(kStagingRoot, "g", bytes);
  at.close();
  // The database finds room as soon as those bytes are gone.
  const auto free_bytes = [&] {
    const bool is_freed = fs::exists(at.bytes_of(file)) && fs::file_size(at.bytes_of(file)) == 0;
    return is_freed ? kStagingPlenty : kStagingTooLittle;
  };
  {
    const auto db = Db::open(at.parent / "db", free_bytes);
    Staging staging(*db, at.directory(), {});
    staging.open(other, false);
    EXPECT_EQ(errno_of([&] { staging.unlink(kStagingRoot, "g"); }), ENOSPC);
    EXPECT_EQ(staging.attributes(other).st_size, 100'000) << "somebody reads it";
    staging.unlink(kStagingRoot, "f");
    EXPECT_EQ(paths_of(staging), std::vector<std::string>{"staging/g"});
  }
  at.reopen();
  EXPECT_EQ(paths_of(*at.staging), std::vector<std::string>{"staging/g"});
}

TEST(Staging, EmptiesAFileThatItCannotUnlinkOnAFullDisk) {
  StagingFixture at;
  const StagingId file = at.file(kStagingRoot, "f", std::string(100'000, 'x'));
  at.free_bytes = kStagingTooLittle;
  EXPECT_EQ(errno_of([&] { at.staging->unlink(kStagingRoot, "f"); }), ENOSPC);
  EXPECT_EQ(at.staging->attributes(file).st_size, 0);
  EXPECT_EQ(at.staging->lookup(kStagingRoot, "f"), file);
  at.staging->change(file, {.size_bytes = 0});
  at.free_bytes = kStagingPlenty;
  at.staging->unlink(kStagingRoot, "f");
  expect_backing(at, {});
}

// ---- loading ----

void put(Db& db, StagingId id, mode_t mode) {
  StagingRecord record;
  record.mode = mode;
  db.write({{ColumnFamily::inodes, inode_key(id), encode(record)}}, Durability::process);
}
void put_name(Db& db, StagingId directory, std::string_view name, StagingId id) {
  db.write({{ColumnFamily::names, name_key(directory, name), inode_key(id)}}, Durability::process);
}

TEST(Staging, DropsAFileWhoseBytesAreGone) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.close();
  fs::remove(at.bytes_of(c.nested));
  at.reopen();
  EXPECT_EQ(paths_of(*at.staging),
            (std::vector<std::string>{"staging/a", "staging/a/model.safetensors", "staging/a/sub",
                                      "staging/a/sub/optimizer.pt"}));
  at.expect_survives();
}

TEST(Staging, RemovesBytesWithoutARecord) {
  StagingFixture at;
  const StagingId kept = at.file(kStagingRoot, "kept");
  const StagingId unlinked = at.file(kStagingRoot, "unlinked", "x");
  at.staging->open(unlinked, false);
  at.staging->unlink(kStagingRoot, "unlinked");
  at.close();
  test::write_text(at.bytes_of(999'999), "x");
  test::write_text(at.directory() / "notes.txt", "not staging's");
  at.reopen();
  EXPECT_EQ(backing_of(at), (std::vector<std::string>{std::to_string(kept), "notes.txt"}));
}

TEST(Staging, KeepsWhatNoNameLeadsTo) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.dir(kStagingRoot, "lost+found-" + std::to_string(c.directory));
  at.close();
  at.open_db();
  at.db->write({{ColumnFamily::names, name_key(kStagingRoot, "a"), std::nullopt}},
               Durability::process);
  at.reopen();
  const std::string place =
      "staging/lost+found-" + std::to_string(c.directory) + ".2/sub/optimizer.pt";
  EXPECT_EQ(at.staging->path_of(c.extra), place);
  at.expect_survives();
}

TEST(Staging, BreaksACycleOfDirectories) {
  StagingFixture at;
  at.close();
  at.open_db();
  put(*at.db, 20, S_IFDIR | 0755);
  put(*at.db, 21, S_IFDIR | 0755);
  put(*at.db, 22, S_IFDIR | 0755);
  put_name(*at.db, 20, "b", 21);
  put_name(*at.db, 21, "a", 20);
  put_name(*at.db, 22, "self", 22);
  at.reopen();
  EXPECT_EQ(paths_of(*at.staging),
            (std::vector<std::string>{"staging/lost+found-20", "staging/lost+found-20/b",
                                      "staging/lost+found-22"}));
  at.expect_survives();
}

TEST(Staging, DropsNamesThatDoNotFit) {
  StagingFixture at;
  const StagingId file = at.file(kStagingRoot, "f");
  at.close();
  at.open_db();
  put_name(*at.db, kStagingRoot, "nothing", 5000);
  put_name(*at.db, kStagingRoot, "second", file);
  put_name(*at.db, kStagingRoot, "a/b", file);
  put_name(*at.db, kStagingRoot, "root", kPublishRoot);
  put_name(*at.db, file, "in a file", file);
  put_name(*at.db, 6000, "in nothing", file);
  at.reopen();
  EXPECT_EQ(paths_of(*at.staging), std::vector<std::string>{"staging/f"});
  at.expect_survives();
  EXPECT_GT(at.dir(kStagingRoot, "d"), file);
}

TEST(Staging, RefusesRecordsThatItCannotRead) {
  const std::vector<Db::Change> kDamaged{
      {ColumnFamily::inodes, inode_key(30), "short"},
      {ColumnFamily::inodes, "key", std::string(36, '\0')},
      {ColumnFamily::inodes, inode_key(30), std::string(36, '\0')},
      {ColumnFamily::inodes, inode_key(kStagingRoot),
       std::string("\0\0\x81\x80", 4) + std::string(8, 0)},
      {ColumnFamily::inodes, inode_key(3), std::string("\0\0\x81\x80", 4) + std::string(8, 0)},
      {ColumnFamily::names, "key", inode_key(30)},
      {ColumnFamily::names, name_key(kStagingRoot, "f"), "id"},
      {ColumnFamily::store, "staging_ids", "many"},
  };
  for (std::size_t i = 0; i < kDamaged.size(); i++) {
    StagingFixture at;
    at.close();
    at.open_db();
    at.db->write({kDamaged[i]}, Durability::process);
    EXPECT_EQ(code_of([&] { at.reopen(); }), ErrorCode::corrupt) << i;
  }
}

TEST(Staging, OpensOnAFullDisk) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.close();
  fs::remove(at.bytes_of(c.nested));
  at.free_bytes = kStagingTooLittle;
  at.reopen();
  EXPECT_EQ(paths_of(*at.staging).size(), 4u);
  EXPECT_EQ(errno_of([&] { at.dir(kStagingRoot, "d"); }), ENOSPC);
  at.staging->sync_file(c.weights, false);  // nothing to record
  at.free_bytes = kStagingPlenty;
  at.dir(kStagingRoot, "d");
  at.expect_survives();
}

// ---- the seal ----

Context stoppable(std::stop_source& source) {
  Context context;
  context.stop = source.get_token();
  return context;
}

TEST(StagingSeal, RefusesEveryChangeBelow) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.file(kStagingRoot, "outside");
  const std::vector<std::function<void()>> changes{
      [&] { at.staging->open(c.weights, true); },
      [&] { at.staging->change(c.nested, {.size_bytes = 0}); },
      [&] { at.staging->change(c.nested, {.mode = 0644}); },
      [&] { at.staging->change(c.nested, {.mtime = kLongAgo}); },
      [&] { at.staging->change(c.directory, {.mode = 0700}); },
      [&] { at.staging->allocate(c.nested, 0, 0, 10); },
      [&] { at.staging->prepare_write(c.nested, 0, 10); },
      [&] { at.file(c.directory, "fresh"); },
      [&] { at.dir(at.staging->parent_of(c.nested), "fresh"); },
      [&] { at.staging->make_symlink(c.directory, "fresh", "x", kStagingUser); },
      [&] { at.staging->unlink(c.directory, "model.safetensors"); },
      [&] { at.staging->remove_directory(c.directory, "sub"); },
      [&] { at.staging->rename(c.directory, "sub", kStagingRoot, "b", 0); },
      [&] { at.staging->rename(kStagingRoot, "outside", c.directory, "inside", 0); },
      [&] { at.staging->rename(kStagingRoot, "outside", kStagingRoot, "a", RENAME_EXCHANGE); },
      [&] { at.staging->rename(kStagingRoot, "a", kStagingRoot, "b", 0); },
      [&] { const Staging::Seal second(*at.staging, c.directory); },
      [&] { const Staging::Seal part(*at.staging, at.staging->parent_of(c.nested)); },
  };
  // All but the roots.
  const auto inodes = [&] {
    const std::string text = tree_text(*at.staging);
    return text.substr(0, text.find("staging id 1 "));
  };
  const std::string before = inodes();
  {
    const Staging::Seal seal(*at.staging, c.directory);
    for (std::size_t i = 0; i < changes.size(); i++) EXPECT_EQ(errno_of(changes[i]), EBUSY) << i;
    at.staging->open(c.weights, false);
    at.staging->release(c.weights, false);
    at.staging->change(at.file(kStagingRoot, "other"), {.mode = 0644});
    at.staging->unlink(kStagingRoot, "other");
  }
  EXPECT_EQ(inodes(), before);
  at.staging->open(c.weights, true);
}

TEST(StagingSeal, IsRefusedAroundAnotherAndOnRoots) {
  StagingFixture at;
  const StagingId run = at.dir(kStagingRoot, "run");
  const auto c = at.checkpoint(run, "a");
  const Staging::Seal seal(*at.staging, c.directory);
  EXPECT_EQ(errno_of([&] { const Staging::Seal around(*at.staging, run); }), EBUSY);
  EXPECT_EQ(errno_of([&] { const Staging::Seal root(*at.staging, kStagingRoot); }), EBUSY);
  EXPECT_EQ(errno_of([&] { const Staging::Seal root(*at.staging, kPublishRoot); }), EROFS);
  EXPECT_EQ(errno_of([&] { const Staging::Seal file(*at.staging, c.weights); }), ENOTDIR);
  at.staging->rename(kStagingRoot, "run", kStagingRoot, "moved", 0);
  EXPECT_EQ(at.staging->path_of(c.weights), "staging/moved/a/model.safetensors");
}

TEST(StagingSeal, LetsAWriterThatIsThereFinish) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.staging->open(c.weights, true);
  const Staging::Seal seal(*at.staging, c.directory);
  at.staging->prepare_write(c.weights, 0, 100);
  at.staging->change(c.weights, {.size_bytes = 50});
  EXPECT_EQ(errno_of([&] { at.staging->open(c.weights, true); }), EBUSY);
}

TEST(StagingSeal, WaitsForTheLastWriter) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.staging->open(c.nested, true);
  at.staging->open(c.nested, true);
  at.staging->open(c.weights, false);
  EXPECT_FALSE(at.staging->wait_unwritten(c.directory, {}, Clock::now()));
  std::thread writer([&] {
    at.staging->release(c.nested, true);
    at.staging->release(c.nested, true);
  });
  EXPECT_TRUE(at.staging->wait_unwritten(c.directory, {}, Clock::now() + std::chrono::minutes(1)));
  writer.join();
  EXPECT_TRUE(at.staging->wait_unwritten(c.directory, {}, Clock::now()));
}

TEST(StagingSeal, IsStoppedWhileItWaits) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.staging->open(c.nested, true);
  std::stop_source source;
  const Context context = stoppable(source);
  std::thread stopper([&] { source.request_stop(); });
  const auto until = Clock::now() + std::chrono::minutes(1);
  EXPECT_EQ(code_of([&] { (void)at.staging->wait_unwritten(c.directory, context, until); }),
            ErrorCode::cancelled);
  stopper.join();
}

TEST(StagingSeal, ListsByPathWithWriters) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.file(c.directory, "sub-x");
  at.staging->open(c.nested, true);
  std::vector<std::string> lines;
  for (const StagedFile& file : at.staging->list(c.directory)) {
    lines.push_back(file.path + " " + std::to_string(file.writers) +
                    (file.type == S_IFDIR ? " d" : ""));
    EXPECT_EQ(at.staging->generation(file.id), file.generation);
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"model.safetensors 0", "sub 0 d", "sub-x 0",
                                             "sub/adapter.safetensors 1", "sub/optimizer.pt 0"}));
}

// ---- handing over ----

const Db::Change kAlso{ColumnFamily::handovers, "key", "record"};

bool has_record(const StagingFixture& at) {
  return at.db->find(ColumnFamily::handovers, "key").has_value();
}

TEST(StagingHandOver, MovesADirectoryInOneSyncedWrite) {
  StagingFixture at;
  const StagingId run = at.dir(kStagingRoot, "run");
  const auto c = at.checkpoint(run, "a");
  const unsigned writes = at.db->writes, synced = at.db->synced_writes;
  {
    const Staging::Seal seal(*at.staging, c.directory);
    at.staging->hand_over(c.directory, "step-1", {kAlso});
  }
  EXPECT_EQ(at.db->synced_writes, synced + 1);
  EXPECT_EQ(at.db->writes, writes);
  EXPECT_TRUE(has_record(at));
  EXPECT_EQ(at.staging->path_of(c.nested), "publish/step-1/sub/adapter.safetensors");
  EXPECT_EQ(at.staging->attributes(run).st_nlink, 2u);
  EXPECT_EQ(at.staging->attributes(kPublishRoot).st_nlink, 3u);
  at.expect_survives();
}

TEST(StagingHandOver, RefusesATakenNameAndWhatIsNoDirectoryOfStaging) {
  StagingFixture at;
  const auto first = at.checkpoint(kStagingRoot, "a"), second = at.checkpoint(kStagingRoot, "b");
  at.staging->hand_over(first.directory, "step", {});
  const std::string before = tree_text(*at.staging);
  const auto hand_over = [&](StagingId id) {
    return errno_of([&] { at.staging->hand_over(id, "step", {kAlso}); });
  };
  EXPECT_EQ(hand_over(second.directory), EBUSY);
  EXPECT_EQ(hand_over(second.weights), ENOTDIR);
  EXPECT_EQ(hand_over(first.directory), EROFS);
  EXPECT_EQ(hand_over(kStagingRoot), EBUSY);
  EXPECT_EQ(hand_over(1u << 30), ESTALE);
  EXPECT_EQ(tree_text(*at.staging), before);
  EXPECT_FALSE(has_record(at));
}

TEST(StagingHandOver, SealsWhatWasHandedOver) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.file(kStagingRoot, "outside");
  at.staging->hand_over(c.directory, "step", {});
  const std::vector<std::function<void()>> changes{
      [&] { at.staging->open(c.weights, true); },
      [&] { at.staging->change(c.weights, {.size_bytes = 0}); },
      [&] { at.staging->change(c.weights, {.mtime = kLongAgo}); },
      [&] { at.staging->change(c.directory, {.mode = 0700}); },
      [&] { at.staging->change(kPublishRoot, {.mode = 0700}); },
      [&] { at.staging->allocate(c.nested, 0, 0, 10); },
      [&] { at.staging->prepare_write(c.nested, 0, 10); },
      [&] { at.file(c.directory, "fresh"); },
      [&] { at.file(kPublishRoot, "fresh"); },
      [&] { at.dir(kPublishRoot, "fresh"); },
      [&] { at.staging->unlink(c.directory, "model.safetensors"); },
      [&] { at.staging->remove_directory(kPublishRoot, "step"); },
      [&] { at.staging->rename(kPublishRoot, "step", kStagingRoot, "b", 0); },
      [&] { at.staging->rename(kStagingRoot, "outside", kPublishRoot, "b", 0); },
      [&] { at.staging->rename(c.directory, "sub", kStagingRoot, "b", 0); },
      [&] { const Staging::Seal seal(*at.staging, c.directory); },
  };
  const std::string before = tree_text(*at.staging);
  for (std::size_t i = 0; i < changes.size(); i++) EXPECT_EQ(errno_of(changes[i]), EROFS) << i;
  at.staging->open(c.weights, false);
  EXPECT_EQ(tree_text(*at.staging), before);
}

TEST(StagingHandOver, IsTakenBack) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  const StagingId other = at.dir(kStagingRoot, "other");
  at.staging->hand_over(c.directory, "step", {kAlso});
  const Db::Change forget{ColumnFamily::handovers, "key", std::nullopt};
  const auto take_back = [&](StagingId parent, std::string_view name) {
    return errno_of([&] { at.staging->take_back(c.directory, parent, name, {forget}); });
  };
  EXPECT_EQ(take_back(kStagingRoot, "other"), EEXIST);
  EXPECT_EQ(take_back(kPublishRoot, "b"), EROFS);
  EXPECT_EQ(take_back(c.directory, "b"), EROFS);
  EXPECT_EQ(take_back(kStagingRoot, std::string(256, 'x')), ENAMETOOLONG);
  EXPECT_TRUE(has_record(at));
  EXPECT_EQ(take_back(other, "back"), 0);
  EXPECT_FALSE(has_record(at));
  EXPECT_EQ(at.staging->path_of(c.weights), "staging/other/back/model.safetensors");
  at.staging->open(c.weights, true);
  at.expect_survives();
}

TEST(StagingHandOver, IsRemovedOnceItIsAllowed) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.staging->hand_over(c.directory, "step", {});
  at.staging->allow_removal(c.directory);
  EXPECT_EQ(errno_of([&] { at.staging->open(c.weights, true); }), EROFS);
  EXPECT_EQ(errno_of([&] { at.file(c.directory, "fresh"); }), EROFS);
  const StagingId sub = at.staging->parent_of(c.nested);
  at.staging->unlink(c.directory, "model.safetensors");
  EXPECT_EQ(errno_of([&] { at.staging->remove_directory(c.directory, "sub"); }), ENOTEMPTY);
  at.staging->unlink(sub, "adapter.safetensors");
  at.staging->unlink(sub, "optimizer.pt");
  at.staging->remove_directory(c.directory, "sub");
  at.staging->remove_directory(kPublishRoot, "step");
  expect_backing(at, {});
  at.expect_survives();
}

// ---- the end of a hand-over ----

struct Finished {
  StagingFixture at;
  StagingId run = at.dir(kStagingRoot, "run");
  StagingFixture::Checkpoint c = at.checkpoint(run, "a");

  Finished() { at.staging->hand_over(c.directory, "step", {}); }
  std::string finish(std::vector<StagingId> published) {
    return at.staging->finish(c.directory, published, {run, "a"}, 7, {kAlso});
  }
};

TEST(StagingFinish, LeavesNothingWhereEverythingWasPublished) {
  Finished f;
  f.at.staging->make_symlink(f.run, "gone", "x", kStagingUser);
  const unsigned synced = f.at.db->synced_writes;
  EXPECT_EQ(f.finish({f.c.weights, f.c.nested, f.c.extra}), "");
  EXPECT_EQ(f.at.db->synced_writes, synced + 1);
  EXPECT_TRUE(has_record(f.at));
  expect_backing(f.at, {});
  EXPECT_EQ(paths_of(*f.at.staging), (std::vector<std::string>{"staging/run", "staging/run/gone"}));
  f.at.expect_survives();
}

TEST(StagingFinish, PutsTheRestBackWhereItCameFrom) {
  Finished f;
  EXPECT_EQ(f.finish({f.c.weights, f.c.nested}), "run/a");
  EXPECT_EQ(paths_of(*f.at.staging),
            (std::vector<std::string>{"staging/run", "staging/run/a", "staging/run/a/sub",
                                      "staging/run/a/sub/optimizer.pt"}));
  f.at.staging->open(f.c.extra, true);
  f.at.staging->release(f.c.extra, true);
  f.at.expect_survives();
  EXPECT_EQ(backing_of(f.at), std::vector<std::string>{std::to_string(f.c.extra)});
}

TEST(StagingFinish, KeepsSymlinksAndDropsEmptyDirectories) {
  StagingFixture at;
  const StagingId directory = at.dir(kStagingRoot, "a");
  at.dir(at.dir(directory, "empty"), "deeper");
  const StagingId nested = at.dir(at.dir(directory, "x"), "y");
  const StagingId weights = at.file(nested, "w");
  at.staging->make_symlink(at.dir(directory, "links"), "l", "x", kStagingUser);
  at.staging->hand_over(directory, "step", {});
  EXPECT_EQ(at.staging->finish(directory, std::vector{weights}, {kStagingRoot, "a"}, 7, {}), "a");
  EXPECT_EQ(paths_of(*at.staging),
            (std::vector<std::string>{"staging/a", "staging/a/links", "staging/a/links/l"}));
  at.expect_survives();
}

TEST(StagingFinish, TakesAnotherNameBesideWhatIsThereMeanwhile) {
  for (int taken = 1; taken <= 3; taken++) {
    Finished f;
    const std::vector<std::string> names{"a", "a.unpublished-7", "a.unpublished-7.2",
                                         "a.unpublished-7.3"};
    for (int i = 0; i < taken; i++) f.at.dir(f.run, names[static_cast<std::size_t>(i)]);
    EXPECT_EQ(f.finish({f.c.weights}), "run/" + names[static_cast<std::size_t>(taken)]);
    f.at.expect_survives();
  }
}

TEST(StagingFinish, ShortensALongNameByWholeCharacters) {
  StagingFixture at;
  std::string name;
  while (name.size() + 2 <= kNameBytesMax) name += "ä";
  const auto c = at.checkpoint(kStagingRoot, name);
  at.staging->hand_over(c.directory, "step", {});
  at.dir(kStagingRoot, name);
  const std::string left = at.staging->finish(c.directory, {}, {kStagingRoot, name}, 7, {});
  EXPECT_EQ(left.substr(left.find('.')), ".unpublished-7");
  EXPECT_LE(left.size(), kNameBytesMax);
  EXPECT_GE(left.size(), kNameBytesMax - 1);
  EXPECT_EQ(left.find('.') % 2, 0u);
  EXPECT_EQ(at.staging->path_of(c.directory), "staging/" + left);
}

TEST(StagingFinish, PutsTheRestIntoStagingIfItsDirectoryIsGone) {
  Finished removed;
  removed.at.staging->remove_directory(kStagingRoot, "run");
  EXPECT_EQ(removed.finish({}), "a");
  removed.at.expect_survives();

  Finished handed_over;
  handed_over.at.staging->hand_over(handed_over.run, "run", {});
  EXPECT_EQ(handed_over.finish({}), "a");

  Finished sealed;
  const Staging::Seal seal(*sealed.at.staging, sealed.run);
  EXPECT_EQ(sealed.finish({}), "a");
  EXPECT_EQ(sealed.at.staging->path_of(sealed.c.nested), "staging/a/sub/adapter.safetensors");
}

TEST(StagingFinish, KeepsOpenFilesReadableAndUnchangeable) {
  Finished f;
  f.at.staging->open(f.c.weights, false);
  const fs::path image = f.at.parent / "image";
  fs::create_hard_link(f.at.bytes_of(f.c.weights), image);
  fs::permissions(image, fs::perms::owner_read);
  f.finish({f.c.weights, f.c.nested, f.c.extra});
  EXPECT_EQ(f.at.staging->attributes(f.c.weights).st_nlink, 0u);
  EXPECT_EQ(test::read_text(f.at.staging->backing_path(f.c.weights)), "weights");
  EXPECT_EQ(errno_of([&] { f.at.staging->open(f.c.weights, true); }), EROFS);
  EXPECT_EQ(errno_of([&] { f.at.staging->change(f.c.weights, {.size_bytes = 0}); }), EROFS);
  EXPECT_EQ(errno_of([&] { f.at.staging->change(f.c.weights, {.mode = 0600}); }), EROFS);
  EXPECT_EQ(errno_of([&] { f.at.staging->change(f.c.weights, {.mtime = kLongAgo}); }), EROFS);
  f.at.staging->release(f.c.weights, false);
  expect_backing(f.at, {});
  EXPECT_EQ(test::read_text(image), "weights");
  EXPECT_EQ(fs::status(image).permissions(), fs::perms::owner_read);
}

TEST(StagingFinish, ChangesNothingIfItCannotBeRecorded) {
  Finished f;
  f.at.staging->sync_directory(kStagingRoot);
  const std::string before = tree_text(*f.at.staging);
  f.at.db->fails = true;
  EXPECT_EQ(code_of([&] { f.finish({f.c.weights}); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { f.at.staging->take_back(f.c.directory, kStagingRoot, "b", {}); }),
            ErrorCode::io);
  f.at.db->fails = false;
  EXPECT_EQ(tree_text(*f.at.staging), before);
  EXPECT_EQ(backing_of(f.at).size(), 3u);
  EXPECT_EQ(errno_of([&] { f.at.staging->finish(f.run, {}, {kStagingRoot, "a"}, 7, {}); }), EINVAL);
}

// ---- who may still write ----

TEST(NobodyWrites, IsTrueForReadersAndFalseForWriters) {
  TempDir parent;
  const fs::path path = parent / "file";
  test::write_text(path, std::string(8192, 'x'));
  EXPECT_TRUE(nobody_writes(path));
  EXPECT_FALSE(nobody_writes(parent / "absent"));
  const auto map = [](const File& file, int protection, int flags) {
    void* bytes = ::mmap(nullptr, 4096, protection, flags, file.fd(), 0);
    EXPECT_NE(bytes, MAP_FAILED);
    return bytes;
  };
  {
    const File reader = File::open(path, O_RDONLY);
    void* bytes = map(reader, PROT_READ, MAP_SHARED);
    EXPECT_TRUE(nobody_writes(path)) << "mere readers";
    ::munmap(bytes, 4096);
  }
  {
    const File writer = File::open(path, O_WRONLY);
    EXPECT_FALSE(nobody_writes(path));
  }
  for (const int flags : {MAP_SHARED, MAP_PRIVATE}) {
    File writer = File::open(path, O_RDWR);
    void* bytes = map(writer, PROT_READ | PROT_WRITE, flags);
    writer = File();
    EXPECT_FALSE(nobody_writes(path)) << "a mapping of a writer's descriptor";
    ::munmap(bytes, 4096);
    EXPECT_TRUE(nobody_writes(path));
  }
  EXPECT_EQ(test::read_text(path).size(), 8192u);
  const File writer = File::open(path, O_RDWR);  // the lease was given back: this does not hang
}

// ---- threads ----

// Random calls whose refusals do not matter.
void change_at_random(Staging& staging, std::mt19937_64 rng, int count) {
  const auto name = [&] { return std::string(1, static_cast<char>('a' + rng() % 6)); };
  const auto directory = [&] {
    StagingId at = kStagingRoot;
    for (std::uint64_t depth = rng() % 3; depth > 0; depth--) {
      try {
        at = staging.lookup(at, name());
      } catch (const PosixError&) {
      }
    }
    return at;
  };
  const auto use_file = [&](StagingId id) {
    staging.open(id, true);
    const auto guard =
        std::shared_ptr<void>(nullptr, [&, id](void*) { staging.release(id, true); });
    staging.prepare_write(id, rng() % 100, 10);
    staging.change(id, {.mode = 0600 + static_cast<mode_t>(rng() % 8), .size_bytes = rng() % 1000});
    (void)staging.attributes(id);
    if (rng() % 50 == 0) staging.sync_file(id, true);
  };
  const auto hand_over = [&](StagingId id) {
    const Staging::Seal seal(staging, id);
    if (!staging.wait_unwritten(id, {}, Clock::now() + std::chrono::milliseconds(5))) return;
    std::vector<StagingId> published;
    for (const StagedFile& file : staging.list(id)) {
      if (file.type == S_IFREG && rng() % 2 == 0) published.push_back(file.id);
    }
    const StagingId parent = staging.parent_of(id);
    staging.hand_over(id, std::to_string(id), {});
    if (rng() % 2 == 0) {
      staging.take_back(id, kStagingRoot, "back-" + std::to_string(id), {});
    } else {
      staging.finish(id, published, {parent, "rest"}, id, {});
    }
  };
  for (int i = 0; i < count; i++) {
    const auto act = [&] {
      switch (rng() % 9) {
        case 0:
        case 1:
          return use_file(staging.make_file(directory(), name(), 0600, kStagingUser));
        case 2:
          return static_cast<void>(staging.make_directory(directory(), name(), 0700, kStagingUser));
        case 3:
          return staging.unlink(directory(), name());
        case 4:
          return staging.remove_directory(directory(), name());
        case 5:
          return staging.rename(directory(), name(), directory(), name(),
                                rng() % 3 == 0 ? RENAME_EXCHANGE : 0);
        case 6:
          return use_file(staging.lookup(directory(), name()));
        case 7:
          (void)staging.summary();
          return static_cast<void>(staging.list(directory()));
        default:
          return hand_over(staging.lookup(kStagingRoot, name()));
      }
    };
    errno_of(act);
  }
}

TEST(StagingThreads, LeaveAWholeTree) {
  std::mt19937_64 rng = test::make_rng();
  StagingFixture at;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back(
          [&, own = std::mt19937_64(rng())] { change_at_random(*at.staging, own, 600); });
    }
  }
  std::vector<std::string> files;
  for (const StagingId root : {kStagingRoot, kPublishRoot}) {
    for (const StagedFile& file : at.staging->list(root)) {
      EXPECT_EQ(file.writers, 0u);
      EXPECT_EQ(at.staging->path_of(file.id),
                std::string(root == kStagingRoot ? "staging/" : "publish/") + file.path);
      if (file.type == S_IFREG) files.push_back(std::to_string(file.id));
    }
  }
  std::sort(files.begin(), files.end());
  expect_backing(at, files);
  at.expect_survives();
}

// ---- kill -9 ----

// Everything but times.
std::string state_of(const Staging& staging) {
  std::string text;
  for (const StagingId root : {kStagingRoot, kPublishRoot}) {
    for (const StagedFile& file : staging.list(root)) {
      const struct stat a = staging.attributes(file.id);
      text += staging.path_of(file.id) + " " + std::to_string(file.id) + " " +
              std::to_string(a.st_mode) + " " + std::to_string(a.st_uid) + " ";
      if (file.type == S_IFREG) text += test::read_text(staging.backing_path(file.id));
      text += "\n";
    }
  }
  return text;
}

// Kills a process with a random history once it has done `least` operations.
// Returns: how many it has said it has done.
std::size_t kill_stager(const fs::path& directory, std::uint64_t seed, std::size_t least) {
  int pipe[2];
  EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const File reader(pipe[0]);
  File writer(pipe[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writer.fd(), STDOUT_FILENO);
  const std::string number = std::to_string(seed);
  const std::vector<const char*> arguments{WEIGHTFS_KILL_STAGER, directory.c_str(), number.c_str(),
                                           nullptr};
  pid_t pid = 0;
  EXPECT_EQ(::posix_spawn(&pid, arguments[0], &actions, nullptr,
                          const_cast<char**>(arguments.data()), environ),
            0);
  ::posix_spawn_file_actions_destroy(&actions);
  writer = File();
  std::size_t done = 0;
  bool is_killed = false;
  char bytes[64];
  for (ssize_t count = 1; count > 0;
       done += static_cast<std::size_t>(std::max<ssize_t>(count, 0))) {
    if (done >= least && !std::exchange(is_killed, true)) ::kill(pid, SIGKILL);
    count = ::read(reader.fd(), bytes, sizeof bytes);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
  return done;
}

TEST(StagingKilled, HasEverythingThatWasDone) {
  std::mt19937_64 rng = test::make_rng();
  for (int round = 0; round < 5; round++) {
    const std::uint64_t seed = rng();
    StagingFixture killed, reference;
    killed.close();
    fs::remove_all(killed.parent / "db");
    const std::size_t done = kill_stager(killed.parent.path(), seed, rng() % 300);
    killed.reopen();
    const std::string found = state_of(*killed.staging);
    std::mt19937_64 history(seed);
    for (std::size_t i = 0; i < done; i++) test::do_next(*reference.staging, history);
    const std::string expected = state_of(*reference.staging);
    if (found != expected) {  // one more may have been done than was said
      test::do_next(*reference.staging, history);
      EXPECT_EQ(found, state_of(*reference.staging)) << "seed " << seed << ", before " << expected;
    }
    killed.expect_survives();
  }
}

}  // namespace
}  // namespace weightfs
