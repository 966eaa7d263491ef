#include "store/database/db.hpp"

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/rotten_files.hpp"
#include "tests/support/support.hpp"
#include "tests/support/sync_watch.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::TempDir;

constexpr std::uint64_t kDbPlenty = 1u << 30;
constexpr std::uint64_t kDbTooLittle = kRecordsFloorBytes - 1;

// A database whose free space is set by the test.
struct DbFixture {
  TempDir parent;
  std::filesystem::path directory = parent / "db";
  std::atomic<std::uint64_t> free_bytes = kDbPlenty;

  std::unique_ptr<Db> open() {
    return Db::open(directory, [this] { return free_bytes.load(); });
  }
};

std::map<std::string, std::string> all_of(const Db& db, ColumnFamily family,
                                          std::string_view prefix = "") {
  std::map<std::string, std::string> all;
  std::string last;
  db.scan(family, prefix, [&](std::string_view key, std::string_view value) {
    EXPECT_TRUE(last.empty() || last < key) << "not ascending";
    last = key;
    all.emplace(key, value);
  });
  return all;
}

// RocksDB takes nothing any more after a failed sync: it must be opened anew, also for who only
// syncs.
TEST(Db, AFailedSyncIsNotTheLast) {
  DbFixture at;
  const auto db = at.open();
  db->write({{ColumnFamily::store, "a", "1"}}, Durability::process);
  {
    const test::SyncWatch watch(".log");
    EXPECT_EQ(code_of([&] { db->sync(); }), ErrorCode::io);
  }
  db->sync();
  EXPECT_EQ(db->find(ColumnFamily::store, "a"), "1");
}

// It is in the log, and was applied when that was read again: a hand-over that was refused came
// back after a restart.
TEST(Db, AWriteWhoseSyncFailedIsNotApplied) {
  DbFixture at;
  auto db = at.open();
  db->write({{ColumnFamily::store, "a", "1"}, {ColumnFamily::store, "gone", "1"}});
  const auto fail = [&] {
    const test::SyncWatch watch(".log");
    EXPECT_EQ(code_of([&] {
                db->write({{ColumnFamily::store, "a", "2"},
                           {ColumnFamily::store, "gone", std::nullopt},
                           {ColumnFamily::store, "b", "2"}});
              }),
              ErrorCode::io);
  };
  const std::map<std::string, std::string> before{{"a", "1"}, {"gone", "1"}};
  fail();
  EXPECT_EQ(all_of(*db, ColumnFamily::store), before);
  fail();
  db.reset();
  db = at.open();
  EXPECT_EQ(all_of(*db, ColumnFamily::store), before);
  fail();
  db->write({{ColumnFamily::store, "a", "3"}});
  db.reset();
  db = at.open();
  EXPECT_EQ(db->find(ColumnFamily::store, "a"), "3");
  EXPECT_EQ(db->find(ColumnFamily::store, "b"), std::nullopt);
}

// Path, size and content of every file, to check that nothing was written.
std::map<std::string, std::string> picture(const std::filesystem::path& directory) {
  return test::read_tree(directory);
}

TEST(ColumnFamilies, NamesEveryFamilyOnceInItsOrder) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kColumnFamilies.size(); i++) {
    EXPECT_EQ(static_cast<std::size_t>(kColumnFamilies[i].family), i);
    EXPECT_TRUE(names.insert(kColumnFamilies[i].name).second) << kColumnFamilies[i].name;
    EXPECT_FALSE(kColumnFamilies[i].key.empty());
    EXPECT_FALSE(kColumnFamilies[i].value.empty());
  }
  EXPECT_EQ(kColumnFamilies[0].name, "default") << "RocksDB has this family in any case";
}

TEST(Db, KeepsEveryFamilyApart) {
  DbFixture at;
  const auto db = at.open();
  for (const ColumnFamilyInfo& info : kColumnFamilies) {
    db->write({{info.family, "key", std::string(info.name)}});
  }
  for (const ColumnFamilyInfo& info : kColumnFamilies) {
    EXPECT_EQ(db->find(info.family, "key"), std::string(info.name));
    EXPECT_EQ(all_of(*db, info.family).size(), 1u);
  }
}

TEST(Db, SaysNulloptForAnAbsentKey) {
  DbFixture at;
  const auto db = at.open();
  EXPECT_EQ(db->find(ColumnFamily::store, "absent"), std::nullopt);
  db->write({{ColumnFamily::store, "empty", ""}});
  EXPECT_EQ(db->find(ColumnFamily::store, "empty"), "");
}

TEST(Db, KeepsBinaryKeysAndValuesInTheirOrder) {
  DbFixture at;
  const auto db = at.open();
  std::vector<Db::Change> changes;
  for (const std::uint64_t number : {1ull, 255ull, 256ull, 1ull << 35}) {
    std::string key, value("\0\xFF", 2);
    append_be64(key, number);
    changes.push_back({ColumnFamily::manifests, key, value + std::to_string(number)});
  }
  db->write(changes);
  std::vector<std::uint64_t> numbers;
  db->scan(ColumnFamily::manifests, "", [&](std::string_view key, std::string_view value) {
    numbers.push_back(load_be(key));
    EXPECT_EQ(value.substr(0, 2), std::string_view("\0\xFF", 2));
  });
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{1, 255, 256, 1ull << 35}));
}

TEST(Db, ScansOnlyThePrefix) {
  DbFixture at;
  const auto db = at.open();
  db->write({{ColumnFamily::store, "a", "0"},
             {ColumnFamily::store, "ab", "1"},
             {ColumnFamily::store, "abc", "2"},
             {ColumnFamily::store, "b", "3"},
             {ColumnFamily::store, "\xFF\xFF", "4"}});
  EXPECT_EQ(all_of(*db, ColumnFamily::store, "ab"),
            (std::map<std::string, std::string>{{"ab", "1"}, {"abc", "2"}}));
  EXPECT_EQ(all_of(*db, ColumnFamily::store, "\xFF").size(), 1u);
  EXPECT_EQ(all_of(*db, ColumnFamily::store).size(), 5u);
  EXPECT_TRUE(all_of(*db, ColumnFamily::store, "zz").empty());
}

TEST(Db, PutsAndDeletesInOneWrite) {
  DbFixture at;
  const auto db = at.open();
  db->write({{ColumnFamily::store, "old", "1"}});
  db->write({{ColumnFamily::store, "old", std::nullopt}, {ColumnFamily::images, "new", "2"}});
  EXPECT_EQ(db->find(ColumnFamily::store, "old"), std::nullopt);
  EXPECT_EQ(db->find(ColumnFamily::images, "new"), "2");
  db->write({{ColumnFamily::store, "never-there", std::nullopt}});
  db->write({});
}

TEST(Db, RemembersAfterReopening) {
  DbFixture at;
  at.open()->write({{ColumnFamily::hashes, "key", "value"}, {ColumnFamily::store, "other", "x"}});
  for (int round = 0; round < 3; round++) {
    const auto db = at.open();
    EXPECT_EQ(db->find(ColumnFamily::hashes, "key"), "value");
    EXPECT_EQ(db->find(ColumnFamily::store, "other"), "x");
  }
}

TEST(Db, TakesLargeValues) {
  DbFixture at;
  const std::string large(20u << 20, 'x');
  at.open()->write({{ColumnFamily::layouts, "key", large}});
  EXPECT_TRUE(at.open()->find(ColumnFamily::layouts, "key") == large);
}

TEST(Db, WritesNothingBelowTheFloor) {
  DbFixture at;
  const auto db = at.open();
  db->write({{ColumnFamily::store, "key", "old"}});
  const auto before = picture(at.directory);
  at.free_bytes = kDbTooLittle;
  std::string message;
  EXPECT_EQ(code_of(
                [&] {
                  db->write({{ColumnFamily::store, "key", "new"}});
                },
                &message),
            ErrorCode::no_space);
  EXPECT_NE(message.find("64.0 MiB"), std::string::npos) << message;
  EXPECT_EQ(db->find(ColumnFamily::store, "key"), "old");
  EXPECT_TRUE(picture(at.directory) == before);
  at.free_bytes = kDbPlenty;
  db->write({{ColumnFamily::store, "key", "new"}});
  EXPECT_EQ(db->find(ColumnFamily::store, "key"), "new");
}

TEST(Db, CountsTheWriteItselfAgainstTheFloor) {
  DbFixture at;
  const auto db = at.open();
  at.free_bytes = kRecordsFloorBytes + 1000;
  EXPECT_EQ(code_of([&] {
              db->write({{ColumnFamily::store, "key", std::string(2000, 'x')}});
            }),
            ErrorCode::no_space);
  db->write({{ColumnFamily::store, "key", std::string(500, 'x')}});
}

TEST(Db, OpenedBelowTheFloorItReadsAndWritesNothing) {
  DbFixture at;
  at.open()->write({{ColumnFamily::store, "key", "old"}});
  const auto before = picture(at.directory);
  at.free_bytes = kDbTooLittle;
  {
    const auto db = at.open();
    EXPECT_EQ(db->find(ColumnFamily::store, "key"), "old");
    EXPECT_EQ(all_of(*db, ColumnFamily::store).size(), 1u);
    EXPECT_EQ(code_of([&] {
                db->write({{ColumnFamily::store, "key", "new"}});
              }),
              ErrorCode::no_space);
  }
  EXPECT_TRUE(picture(at.directory) == before);
}

TEST(Db, OpenedBelowTheFloorItWritesWhenThereIsRoom) {
  DbFixture at;
  at.open()->write({{ColumnFamily::store, "key", "old"}});
  at.free_bytes = kDbTooLittle;
  const auto db = at.open();
  at.free_bytes = kDbPlenty;
  db->write({{ColumnFamily::store, "key", "new"}});
  EXPECT_EQ(db->find(ColumnFamily::store, "key"), "new");
}

TEST(Db, SaysHowLargeItIsAndWhetherItCanBeWritten) {
  DbFixture at;
  {
    const auto db = at.open();
    const std::uint64_t before = db->facts().memtable_bytes;
    db->write({{ColumnFamily::store, "key", std::string(100'000, 'x')}});
    EXPECT_GE(db->facts().memtable_bytes, before + 100'000);
    EXPECT_TRUE(db->facts().is_writable);
    EXPECT_EQ(db->facts().background_errors, 0U);
    at.free_bytes = kDbTooLittle;
    EXPECT_FALSE(db->facts().is_writable);
    at.free_bytes = kDbPlenty;
    EXPECT_TRUE(db->facts().is_writable);
  }
  EXPECT_GE(at.open()->facts().file_bytes, 100'000U);  // the log became a file
  EXPECT_FALSE(Db::open_for_reading(at.directory)->facts().is_writable);
}

TEST(Db, IsNotMadeBelowTheFloor) {
  DbFixture at;
  at.free_bytes = kDbTooLittle;
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::no_space);
  at.free_bytes = kDbPlenty;
  at.open()->write({{ColumnFamily::store, "key", "value"}});
}

TEST(Db, CannotBeOpenedTwiceForWriting) {
  DbFixture at;
  const auto db = at.open();
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::io);
}

// Makes sure that the records are in a table file, not only in the log.
void fill(DbFixture& at) {
  for (int round = 0; round < 3; round++) {
    at.open()->write(
        {{ColumnFamily::store, "key" + std::to_string(round), std::string(100'000, 'v')}});
  }
}

TEST(Db, SaysCorruptIfItIsNoDatabase) {
  DbFixture at;
  test::write_text(at.directory / "CURRENT", "garbage");
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::corrupt);
  at.free_bytes = kDbTooLittle;
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::corrupt);
}

TEST(Db, SaysCorruptIfItsManifestIsDamaged) {
  DbFixture at;
  fill(at);
  for (const auto& entry : std::filesystem::directory_iterator(at.directory)) {
    if (!entry.path().filename().string().starts_with("MANIFEST-")) continue;
    test::write_text(entry.path(), std::string(entry.file_size(), 'x'));
  }
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::corrupt);
}

TEST(Db, SaysCorruptIfATableIsGone) {
  DbFixture at;
  fill(at);
  int removed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(at.directory)) {
    if (entry.path().extension() == ".sst") removed += std::filesystem::remove(entry.path());
  }
  ASSERT_GT(removed, 0);
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::corrupt);
}

TEST(Db, SaysCorruptIfATableRotted) {
  DbFixture at;
  fill(at);
  int rotted = 0;
  for (const auto& entry : std::filesystem::directory_iterator(at.directory)) {
    if (entry.path().extension() != ".sst") continue;
    std::string bytes = test::read_text(entry.path());
    if (bytes.size() < 50'000) continue;
    bytes[20'000] = static_cast<char>(bytes[20'000] ^ 1);
    test::write_text(entry.path(), bytes);
    rotted++;
  }
  ASSERT_GT(rotted, 0);
  EXPECT_EQ(code_of([&] {
              const auto db = at.open();
              for (int round = 0; round < 3; round++) {
                (void)db->find(ColumnFamily::store, "key" + std::to_string(round));
              }
            }),
            ErrorCode::corrupt);
}

TEST(Db, MayBeUsedByManyThreads) {
  DbFixture at;
  at.open()->write({{ColumnFamily::store, "warm", "up"}});
  at.free_bytes = kDbTooLittle;
  const auto db = at.open();  // the first write reopens it while others read
  at.free_bytes = kDbPlenty;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; thread++) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 20; round++) {
        const std::string key = std::to_string(thread) + "." + std::to_string(round);
        db->write({{ColumnFamily::store, key, key}, {ColumnFamily::images, key, key}});
        EXPECT_EQ(db->find(ColumnFamily::store, key), key);
        EXPECT_EQ(db->find(ColumnFamily::store, "warm"), "up");
        (void)all_of(*db, ColumnFamily::images);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(all_of(*db, ColumnFamily::images).size(), 80u);
}

// ---- families that are made later, sorted files ----

constexpr ColumnFamily kBulk = ColumnFamily::patches;

// Pairs "<prefix>0000".."<prefix>NNNN".
SortedFile make_sorted(Db& db, const DbFixture& at, std::string_view prefix, int count) {
  SortedFile file = db.make_sorted_file(at.parent.path());
  for (int i = 0; i < count; i++) {
    file.add(std::string(prefix) + std::to_string(1000 + i), std::string(500, 'v'));
  }
  const std::uint64_t expected_bytes = file.size_bytes();
  file.finish();
  EXPECT_LE(file.size_bytes(), expected_bytes);
  return file;
}

std::vector<SortedFile> as_list(SortedFile file) {
  std::vector<SortedFile> files;
  files.push_back(std::move(file));
  return files;
}

std::vector<std::string> family_names(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  EXPECT_TRUE(rocksdb::DB::ListColumnFamilies(rocksdb::Options(), directory.string(), &names).ok());
  return names;
}

TEST(Db, ALazyFamilyIsMadeByTheFirstWrite) {
  DbFixture at;
  {
    const auto db = at.open();
    EXPECT_EQ(db->find(kBulk, "key"), std::nullopt);
    EXPECT_TRUE(all_of(*db, kBulk).empty());
    db->write({{kBulk, "key", std::nullopt}, {ColumnFamily::store, "other", "x"}});
    db->remove_range(kBulk, "a", "b", {});
    EXPECT_EQ(family_names(at.directory).size(), kColumnFamilies.size() - 1);
  }
  at.open();  // as an older release would
  EXPECT_EQ(family_names(at.directory).size(), kColumnFamilies.size() - 1);
  {
    const auto db = at.open();
    db->write({{kBulk, "key", "value"}});
    EXPECT_EQ(db->find(kBulk, "key"), "value");
    EXPECT_EQ(family_names(at.directory).size(), kColumnFamilies.size());
  }
  EXPECT_EQ(at.open()->find(kBulk, "key"), "value");
  at.free_bytes = kDbTooLittle;
  EXPECT_EQ(at.open()->find(kBulk, "key"), "value");
  EXPECT_EQ(Db::open_for_reading(at.directory)->find(kBulk, "key"), "value");
}

TEST(Db, TakesInSortedFilesAndThenTheChanges) {
  DbFixture at;
  {
    const auto db = at.open();
    std::vector<SortedFile> files;
    files.push_back(make_sorted(*db, at, "a", 100));
    files.push_back(make_sorted(*db, at, "b", 100));
    const std::filesystem::path path = files.front().path();
    EXPECT_GT(files.front().size_bytes(), 50'000u);
    EXPECT_EQ(files.front().size_bytes(), std::filesystem::file_size(path));
    db->ingest(kBulk, std::move(files), {{ColumnFamily::store, "record", "2"}});
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(all_of(*db, kBulk).size(), 200u);
    EXPECT_EQ(db->find(ColumnFamily::store, "record"), "2");
  }
  EXPECT_EQ(all_of(*at.open(), kBulk).size(), 200u);
}

TEST(Db, AnUnusedSortedFileIsRemoved) {
  DbFixture at;
  const auto db = at.open();
  std::filesystem::path path;
  {
    const SortedFile file = make_sorted(*db, at, "a", 10);
    path = file.path();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Db, ReadsARangeUntilToldToStop) {
  DbFixture at;
  const auto db = at.open();
  db->ingest(kBulk, as_list(make_sorted(*db, at, "k", 20)), {});
  const auto keys = [&](std::string_view begin, std::string_view end, std::size_t most) {
    std::vector<std::string> found;
    db->read_range(kBulk, begin, end, [&](std::string_view key, std::string_view value) {
      EXPECT_EQ(value.size(), 500u);
      found.emplace_back(key);
      return found.size() < most;
    });
    return found;
  };
  EXPECT_EQ(keys("k1003", "k1006", 100), (std::vector<std::string>{"k1003", "k1004", "k1005"}));
  EXPECT_EQ(keys("k1003", "", 2), (std::vector<std::string>{"k1003", "k1004"}));
  EXPECT_EQ(keys("", "", 100).size(), 20u);
  EXPECT_TRUE(keys("l", "", 100).empty());
}

TEST(Db, RemovesARangeWithItsFiles) {
  DbFixture at;
  const auto db = at.open();
  const auto disk_bytes = [&] {
    std::uint64_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(at.directory)) {
      if (entry.path().extension() == ".sst") sum += entry.file_size();
    }
    return sum;
  };
  for (const char* prefix : {"a", "b", "c"}) {
    db->ingest(kBulk, as_list(make_sorted(*db, at, prefix, 1000)), {});
  }
  const std::uint64_t before = disk_bytes();
  EXPECT_GT(before, 1'500'000u);
  db->remove_range(kBulk, "b", "c", {{ColumnFamily::store, "gone", "b"}});
  EXPECT_EQ(db->find(ColumnFamily::store, "gone"), "b");
  EXPECT_EQ(all_of(*db, kBulk).size(), 2000u);
  EXPECT_LT(disk_bytes(), before * 3 / 4);
  db->remove_range(kBulk, "a", "a1500", {});  // half a file
  EXPECT_EQ(all_of(*db, kBulk).size(), 1500u);
  db->ingest(kBulk, as_list(make_sorted(*db, at, "b", 7)), {});
  EXPECT_EQ(all_of(*db, kBulk, "b").size(), 7u);
  db->remove_range(kBulk, "", "", {});
  EXPECT_TRUE(all_of(*db, kBulk).empty());
}

// A mark over all keys took the place of the pairs, and of the files beneath it none was unlinked
// any more.
TEST(Db, AFamilyIsEmptiedWhoseFilesCannotBeRead) {
  for (const ColumnFamily family : {kBulk, ColumnFamily::manifests}) {
    const ColumnFamilyInfo& info = kColumnFamilies.at(static_cast<std::size_t>(family));
    DbFixture at;
    at.open()->write({{family, "key", "value"}, {ColumnFamily::store, "other", "x"}});
    at.open();  // which writes it to a file
    ASSERT_GT(test::rot_family(at.directory, info.name), 0u);
    {
      const auto db = at.open();
      EXPECT_EQ(code_of([&] { all_of(*db, family); }), ErrorCode::corrupt);
      db->remove_range(family, "", "", {{ColumnFamily::store, "gone", "all"}});
      EXPECT_TRUE(all_of(*db, family).empty());
      EXPECT_EQ(db->find(ColumnFamily::store, "other"), "x");
      EXPECT_EQ(db->find(ColumnFamily::store, "gone"), "all");
      if (info.is_bulk) {
        db->ingest(family, as_list(make_sorted(*db, at, "b", 7)), {});
        db->remove_range(family, "b", "c", {});
      }
    }
    EXPECT_TRUE(test::files_of_family(at.directory, info.name).empty()) << info.name;
    at.open()->write({{family, "key", "again"}});
    EXPECT_EQ(at.open()->find(family, "key"), "again");
  }
}

TEST(Db, TakesInNothingBelowTheFloor) {
  DbFixture at;
  const auto db = at.open();
  std::vector<SortedFile> files = as_list(make_sorted(*db, at, "a", 10));
  at.free_bytes = kRecordsFloorBytes + kSortedFileBytesMax - 1;
  EXPECT_EQ(code_of([&] { (void)db->make_sorted_file(at.parent.path()); }), ErrorCode::no_space);
  at.free_bytes = kDbTooLittle;
  EXPECT_EQ(code_of([&] { db->ingest(kBulk, std::move(files), {}); }), ErrorCode::no_space);
  EXPECT_EQ(code_of([&] { db->remove_range(kBulk, "", "", {}); }), ErrorCode::no_space);
  EXPECT_TRUE(all_of(*db, kBulk).empty());
  EXPECT_EQ(family_names(at.directory).size(), kColumnFamilies.size() - 1);
}

TEST(Db, ASortedFileThatCannotBeWrittenIsAnError) {
  DbFixture at;
  const auto db = at.open();
  EXPECT_EQ(code_of([&] { (void)db->make_sorted_file(at.parent / "absent"); }), ErrorCode::io);
}

}  // namespace
}  // namespace weightfs
