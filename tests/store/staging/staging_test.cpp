// Staging: names, files, space and loading.
#include "store/staging/staging.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/os/holes.hpp"
#include "store/staging/records.hpp"
#include "tests/store/staging/staging_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/staging_support.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::backing_of;
using test::code_of;
using test::errno_of;
using test::expect_backing;
using test::kLongAgo;
using test::kStagingPlenty;
using test::kStagingTooLittle;
using test::kStagingUser;
using test::paths_of;
using test::StagingFixture;
using test::tree_text;

/// A machine that is restarted, whose disk has of this file the first bytes.
StagingId sparse_file(StagingFixture& at, StagingId directory, std::string_view name) {
  const StagingId id = at.file(directory, name, "a header");
  fs::resize_file(at.bytes_of(id), 1u << 20);
  return id;
}

void restart_machine(StagingFixture& at) {
  at.db->write({{ColumnFamily::store, "staging_boot", "another run"}}, Durability::process);
  at.reopen();
}

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
    const StagingId made = at.file(kStagingRoot, name);
    EXPECT_EQ(at.staging->lookup(kStagingRoot, name), made) << name;
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
      // The callback may read the tree itself.
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

TEST(Staging, KeepsAnUnlinkedFileUntilItsLastRelease) {
  StagingFixture at;
  const StagingId file = at.file(kStagingRoot, "f", "bytes");
  at.staging->open(file, false);
  at.staging->open(file, true);
  at.staging->unlink(kStagingRoot, "f");
  EXPECT_EQ(at.staging->attributes(file).st_nlink, 0u);
  at.staging->change(file, {.mode = 0640, .size_bytes = 3});
  EXPECT_EQ(at.staging->attributes(file).st_mode, S_IFREG | 0640u);
  at.staging->open(file, false);  // like an open through /proc/self/fd
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
  expect({1500});  // nothing was written
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

// The ranks of a trainer set the sizes of their files, and then write them.
TEST(Staging, AsksForRoomForWhatWasNotWrittenYetToo) {
  constexpr std::uint64_t kPage = 4096;
  StagingFixture at;
  std::vector<std::uint64_t> asked;
  at.make_room = [&](std::uint64_t bytes) { asked.push_back(bytes / kPage); };
  at.reopen();
  std::vector<StagingId> ranks;
  for (const char* const name : {"a", "b", "c", "d"}) {
    ranks.push_back(at.file(kStagingRoot, name));
    at.staging->open(ranks.back(), true);
  }
  asked.clear();
  at.staging->change(ranks[0], {.size_bytes = 1 * kPage});
  at.staging->change(ranks[1], {.size_bytes = 2 * kPage});
  at.staging->change(ranks[2], {.size_bytes = 4 * kPage});
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{1, 1 + 2, 1 + 2 + 4}));

  asked.clear();
  test::write_text(at.bytes_of(ranks[0]), std::string(kPage, 'x'));  // has taken its room
  at.staging->release(ranks[1], true);                               // stays as it is
  at.staging->allocate(ranks[2], 0, 0, 8 * kPage);                   // takes what it lacked
  at.staging->change(ranks[3], {.size_bytes = 16 * kPage});
  at.staging->prepare_write(ranks[0], kPage, kPage);
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{8, 16, 1}));
}

TEST(Staging, AsksForRoomForWhatOthersAreAboutToTake) {
  StagingFixture at;
  std::vector<std::uint64_t> asked;
  std::function<void()> meanwhile;
  at.make_room = [&](std::uint64_t bytes) {
    asked.push_back(bytes);
    if (meanwhile) std::exchange(meanwhile, {})();
  };
  at.reopen();
  const StagingId a = at.file(kStagingRoot, "a"), b = at.file(kStagingRoot, "b");
  const auto resize = [&](StagingId id) { at.staging->change(id, {.size_bytes = 1000}); };
  const auto allocate = [&](StagingId id) { at.staging->allocate(id, 0, 0, 1000); };
  for (const auto& change : std::vector<std::function<void(StagingId)>>{resize, allocate}) {
    for (const StagingId id : {a, b}) at.staging->change(id, {.size_bytes = 0});
    asked.clear();
    meanwhile = [&] { change(b); };
    change(a);
    EXPECT_EQ(asked, (std::vector<std::uint64_t>{1000, 2000}));
  }
  EXPECT_EQ(errno_of([&] { at.staging->change(a, {.size_bytes = UINT64_MAX}); }), EINVAL);
  asked.clear();
  at.staging->allocate(b, 0, 0, 4096);
  EXPECT_EQ(asked, std::vector<std::uint64_t>{4096}) << "what failed counts no more";
}

TEST(Staging, WhatOnlyMayComeIsNoReasonToRefuse) {
  StagingFixture at;
  std::vector<std::uint64_t> asked;
  at.make_room = [&](std::uint64_t bytes) {
    asked.push_back(bytes);
    if (bytes > 4000) throw Error(ErrorCode::no_space, "full");
  };
  at.reopen();
  const StagingId sparse = at.file(kStagingRoot, "a"), file = at.file(kStagingRoot, "b");
  at.staging->open(sparse, true);
  at.staging->change(sparse, {.size_bytes = 3000});
  asked.clear();
  at.staging->change(file, {.size_bytes = 2000});
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{5000, 5000, 2000}));
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
  calls.emplace_back([](Staging& s) { s.unlink(kStagingRoot, "g"); });  // open, so not emptied
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
  // The database has room once those bytes are gone.
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

// ---- a restart of the machine ----

// Of a saver that sets the size first: its header is there, and the bytes behind it are zeros.
TEST(Staging, AFileWithHolesIsLostOnceTheMachineWasRestarted) {
  StagingFixture at;
  const StagingId run = at.dir(kStagingRoot, "run"), whole = at.dir(kStagingRoot, "whole");
  const StagingId sparse = sparse_file(at, run, "a.safetensors");
  at.file(whole, "a.safetensors", "all of it");
  sparse_file(at, whole, "sparse.txt");
  if (!has_hole(File::open(at.bytes_of(sparse), O_RDONLY).fd())) {
    GTEST_SKIP() << "the file system does not tell of holes";
  }
  at.reopen();
  EXPECT_FALSE(at.staging->find_lost(run)) << "the machine was not restarted";
  restart_machine(at);
  EXPECT_EQ(at.staging->find_lost(run), "a.safetensors");
  EXPECT_FALSE(at.staging->find_lost(whole));
  at.reopen();
  EXPECT_EQ(at.staging->find_lost(run), "a.safetensors") << "later processes know it too";
  at.staging->change(sparse, {.size_bytes = 0});
  EXPECT_FALSE(at.staging->find_lost(run)) << "it is saved again";
}

// Else a later process takes the machine for restarted while somebody saves.
TEST(Staging, ARestartThatAFullDiskDidNotRecordIsRecordedWithTheNextChange) {
  StagingFixture at;
  const StagingId run = at.dir(kStagingRoot, "run");
  const StagingId sparse = sparse_file(at, run, "a.safetensors");
  if (!has_hole(File::open(at.bytes_of(sparse), O_RDONLY).fd())) {
    GTEST_SKIP() << "the file system does not tell of holes";
  }
  at.db->write({{ColumnFamily::store, "staging_boot", "another run"}}, Durability::process);
  at.free_bytes = kStagingTooLittle;
  at.reopen();
  EXPECT_EQ(at.staging->find_lost(run), "a.safetensors");
  EXPECT_EQ(at.db->find(ColumnFamily::store, "staging_boot"), "another run");
  EXPECT_EQ(errno_of([&] { at.dir(kStagingRoot, "saved"); }), ENOSPC);

  at.free_bytes = kStagingPlenty;
  const StagingId saved = at.dir(kStagingRoot, "saved");
  sparse_file(at, saved, "a.safetensors");  // of a saver that has set the size
  at.reopen();
  EXPECT_FALSE(at.staging->find_lost(saved));
  EXPECT_EQ(at.staging->find_lost(run), "a.safetensors");
}

// As where a container hides it.
TEST(Staging, WhereNobodyKnowsOfARestartNoFileIsLost) {
  StagingFixture at;
  sparse_file(at, kStagingRoot, "a.safetensors");
  for (const char* before : {"another run", "one more"}) {
    at.db->write({{ColumnFamily::store, "staging_boot", before}}, Durability::process);
    at.staging.reset();
    StagingOptions options;
    options.boot = std::nullopt;
    at.staging = std::make_unique<Staging>(*at.db, at.directory(), std::move(options));
    EXPECT_FALSE(at.staging->find_lost(kStagingRoot));
    EXPECT_EQ(at.db->find(ColumnFamily::store, "staging_boot"), before);
  }
}

TEST(Staging, AStoreOfAnOlderReleaseLosesNoSparseFiles) {
  StagingFixture at;
  sparse_file(at, kStagingRoot, "a.safetensors");
  at.db->write({{ColumnFamily::store, "staging_boot", std::nullopt}}, Durability::process);
  at.reopen();
  EXPECT_FALSE(at.staging->find_lost(kStagingRoot));
}

}  // namespace
}  // namespace weightfs
