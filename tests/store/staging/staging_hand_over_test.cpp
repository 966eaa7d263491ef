// Staging: the seal, hand-overs and their end, writers, threads, kill -9.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/os/lease.hpp"
#include "store/staging/records.hpp"
#include "store/staging/staging.hpp"
#include "tests/store/staging/staging_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/few_descriptors.hpp"
#include "tests/support/staging_history.hpp"
#include "tests/support/staging_support.hpp"
#include "tests/support/support.hpp"

extern char** environ;

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::backing_of;
using test::code_of;
using test::errno_of;
using test::expect_backing;
using test::kLongAgo;
using test::kStagingUser;
using test::paths_of;
using test::StagingFixture;
using test::TempDir;
using test::tree_text;

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

TEST(StagingHandOver, WhatTheDiskLostIsKnownUntilItIsWrittenAgain) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.staging->note_lost(c.directory);
  at.staging->change(c.weights, {.mode = 0640});
  at.expect_survives();
  for (const StagingId file : {c.weights, c.nested, c.extra}) {
    EXPECT_TRUE(at.staging->is_lost(file));
    EXPECT_EQ(at.staging->attributes(file).st_mode & S_IFMT, static_cast<mode_t>(S_IFREG));
    EXPECT_TRUE(at.staging->find_lost(c.directory));
    at.staging->change(file, {.size_bytes = 0});
  }
  EXPECT_FALSE(at.staging->find_lost(c.directory));
  at.expect_survives();
  EXPECT_FALSE(at.staging->find_lost(c.directory));
}

// The write that takes it back is the last that can.
TEST(StagingHandOver, WhatTheDiskLostIsRecordedLaterIfThereWasNoRoom) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.staging->hand_over(c.directory, "b", {});
  at.db->fails = true;
  at.staging->note_lost(c.directory);
  EXPECT_TRUE(at.staging->is_lost(c.weights));
  at.db->fails = false;
  at.staging->take_back(c.directory, kStagingRoot, "a", {});
  at.reopen();
  EXPECT_TRUE(at.staging->is_lost(c.weights));
}

TEST(StagingHandOver, AMarkThatThereWasNoRoomForIsWrittenTheNextTime) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  at.db->fails = true;
  at.staging->note_lost(c.directory);
  at.db->fails = false;
  at.staging->note_lost(c.directory);
  at.reopen();
  EXPECT_TRUE(at.staging->is_lost(c.weights));
}

TEST(StagingHandOver, AMarkThatThereWasNoRoomForIsWrittenWithTheNextChange) {
  StagingFixture at;
  const auto c = at.checkpoint(kStagingRoot, "a");
  const StagingId gone = at.file(c.directory, "gone");
  at.db->fails = true;
  for (const StagingId file : {c.weights, c.nested, gone}) at.staging->note_lost_file(file);
  EXPECT_THROW(at.staging->change(c.weights, {.mode = 0640}), Error);
  at.db->fails = false;
  at.staging->unlink(c.directory, "gone");
  at.staging->change(c.nested, {.size_bytes = 0});
  at.staging->change(c.nested, {.mode = 0640});
  at.expect_survives();
  EXPECT_TRUE(at.staging->is_lost(c.weights));
  EXPECT_FALSE(at.staging->is_lost(c.nested));
  EXPECT_FALSE(at.staging->is_lost(c.extra));
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

TEST(StagingFinish, WhatGoesBackKeepsTheMarkThatThereWasNoRoomFor) {
  Finished f;
  f.at.db->fails = true;
  f.at.staging->note_lost(f.c.directory);
  f.at.db->fails = false;
  EXPECT_EQ(f.finish({f.c.weights, f.c.nested}), "run/a");
  f.at.reopen();
  EXPECT_TRUE(f.at.staging->is_lost(f.c.extra));
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

// ---- possible writers ----

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
  const File writer = File::open(path, O_RDWR);  // does not hang, because the lease was given back
}

// Whoever asks must not take it for an answer: see find_writers().
TEST(NobodyWrites, IsFalseWithNoDescriptorLeft) {
  TempDir parent;
  const fs::path path = parent / "file";
  test::write_text(path, "bytes");
  {
    const test::FewDescriptors none;
    EXPECT_FALSE(nobody_writes(path));
  }
  EXPECT_TRUE(nobody_writes(path));
}

// ---- threads ----

// Random calls; refusals do not matter.
void change_at_random(Staging& staging, test::Random rng, int count) {
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
  test::Random rng = test::make_rng();
  StagingFixture at;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back(
          [&, own = test::Random(rng())] { change_at_random(*at.staging, own, 600); });
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

// Everything except times.
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
// Returns: how many it reported as done.
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
  test::Random rng = test::make_rng();
  for (int round = 0; round < 5; round++) {
    const std::uint64_t seed = rng();
    StagingFixture killed, reference;
    killed.close();
    fs::remove_all(killed.parent / "db");
    const std::size_t done = kill_stager(killed.parent.path(), seed, rng() % 300);
    killed.reopen();
    const std::string found = state_of(*killed.staging);
    test::Random history(seed);
    for (std::size_t i = 0; i < done; i++) test::do_next(*reference.staging, history);
    const std::string expected = state_of(*reference.staging);
    if (found != expected) {  // one more may have been done than reported
      test::do_next(*reference.staging, history);
      EXPECT_EQ(found, state_of(*reference.staging)) << "seed " << seed << ", before " << expected;
    }
    killed.expect_survives();
  }
}

}  // namespace
}  // namespace weightfs
