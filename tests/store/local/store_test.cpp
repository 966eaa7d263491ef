#include "store/local/store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/local/store_directory.hpp"
#include "store/os/lease.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;

namespace fs = std::filesystem;
using test::TempDir;

constexpr std::string_view kStoreId = "0123456789abcdef0123456789abcdef";
constexpr std::string_view kOtherId = "ffffffffffffffffffffffffffffffff";
constexpr std::string_view kStoreUrl = "file:///bucket";
constexpr std::uint64_t kStorePlenty = 1ull << 40;

using Versions = std::vector<std::uint64_t>;

// A store whose file system the test decides.
struct StoreFixture {
  TempDir parent;
  fs::path path = parent / "store";
  StoreLimits limits;
  std::atomic<std::uint64_t> free_bytes = kStorePlenty;
  std::atomic<std::uint64_t> total_bytes = 2 * kStorePlenty;

  std::unique_ptr<Store> open(std::string_view repository = kStoreId,
                              std::string_view url = kStoreUrl) {
    return Store::open(path, repository, url, limits, [this] {
      return Space{free_bytes, total_bytes};
    });
  }
};

// Two files and `chunks` hashes, as a sync would make them.
void add_version(Store& store, std::uint64_t version, std::size_t bytes = 1000,
                 std::size_t chunks = 3) {
  const fs::path directory = store.begin_images(version);
  test::write_text(directory / "a.bin", std::string(bytes - 10, 'a'));
  test::write_text(directory / "sub/b.bin", std::string(10, 'b'));
  const std::vector<std::uint64_t> sizes{bytes - 10, 10};
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < chunks; i++) hashes.push_back(version * 1000 + i);
  store.complete_images(version, sizes, hashes);
}

// What `latest` names.
Eviction::Reservation keep(Store& store, std::uint64_t version) {
  return store.eviction().reserve(version, Eviction::Claim::stays, {});
}

// Every version is in use, or none; notes which were asked for.
class InUse : public VersionGuard {
 public:
  InUse(Store& store, bool in_use, Versions* asked = nullptr, std::function<void()> also = {})
      : in_use_(in_use),
        asked_(asked),
        also_(std::move(also)),
        guarding_(store.eviction().add_guard(*this)) {}

  bool release(std::uint64_t version) override {
    if (asked_ != nullptr) asked_->push_back(version);
    if (also_) also_();
    return !in_use_;
  }

 private:
  const bool in_use_;
  Versions* const asked_;
  const std::function<void()> also_;
  Eviction::Guarding guarding_;
};

// ---- the directory ----

TEST(Store, IsMadePrivateAndMarked) {
  StoreFixture at;
  const auto store = at.open();
  EXPECT_EQ(fs::status(at.path).permissions(), fs::perms::owner_all);
  EXPECT_EQ(test::read_text(at.path / "STORE"),
            "weightfs store 1\n" + std::string(kStoreId) + "\n" + std::string(kStoreUrl) + "\n");
  EXPECT_TRUE(fs::is_directory(store->temporary_directory()));
  EXPECT_TRUE(store->complete_versions().empty());
  EXPECT_EQ(store->newest().version, 0u);
  const auto identity = Store::find_identity(at.path);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->repository, kStoreId);
  EXPECT_EQ(identity->url, kStoreUrl);
}

TEST(Store, TakesAnEmptyDirectoryAndMakesItPrivate) {
  StoreFixture at;
  fs::create_directories(at.path / "lost+found");
  fs::permissions(at.path, fs::perms::all);
  at.open();
  EXPECT_EQ(fs::status(at.path).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(fs::exists(at.path / "lost+found"));
}

TEST(Store, TakesWhatAnInterruptedAttemptLeft) {
  StoreFixture at;
  test::write_text(at.path / "lock", "");
  test::write_text(at.path / ".STORE.0123456789abcdef", "weightfs");
  at.open();
}

TEST(Store, RefusesADirectoryWithOtherThings) {
  StoreFixture at;
  test::write_text(at.path / "precious.txt", "x");
  fs::permissions(at.path, fs::perms::owner_all | fs::perms::group_read);
  std::string message;
  EXPECT_EQ(code_of([&] { at.open(); }, &message), ErrorCode::invalid);
  EXPECT_NE(message.find(at.path.string()), std::string::npos) << message;
  EXPECT_EQ(test::read_tree(at.path).size(), 1u) << "something was written";
  EXPECT_NE(fs::status(at.path).permissions(), fs::perms::owner_all);
  EXPECT_FALSE(Store::find_identity(at.path));
}

TEST(Store, RefusesAFileAndAForeignMarker) {
  StoreFixture at;
  test::write_text(at.path, "a file");
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::invalid);
  fs::remove(at.path);
  test::write_text(at.path / "STORE", "a shop");
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::invalid);
  EXPECT_EQ(test::read_text(at.path / "STORE"), "a shop");
}

TEST(Store, RefusesAnotherOwnersDirectory) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  StoreFixture at;
  at.open();
  ASSERT_EQ(::chown(at.path.c_str(), 65534, 65534), 0);
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::permission);
}

TEST(Store, RefusesAnotherRepositorysStore) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  std::string message;
  EXPECT_EQ(code_of([&] { at.open(kOtherId); }, &message), ErrorCode::invalid);
  EXPECT_NE(message.find(kStoreId), std::string::npos) << message;
  EXPECT_NE(message.find(kOtherId), std::string::npos) << message;
  EXPECT_TRUE(at.open()->is_complete(1));
}

TEST(Store, RemembersWhereTheBucketMoved) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  EXPECT_TRUE(at.open(kStoreId, "file:///elsewhere")->is_complete(1));
  EXPECT_EQ(Store::find_identity(at.path)->url, "file:///elsewhere");
}

TEST(Store, IsLockedAgainstASecondOne) {
  StoreFixture at;
  {
    const auto store = at.open();
    std::string message;
    EXPECT_EQ(code_of([&] { at.open(); }, &message), ErrorCode::busy);
    EXPECT_NE(message.find("in use by process " + std::to_string(::getpid())), std::string::npos)
        << message;
  }
  at.open();
}

TEST(Store, OfManyOpenersOneGetsIt) {
  StoreFixture at;
  std::atomic<int> opened = 0, busy = 0, ready = 0;
  std::vector<std::unique_ptr<Store>> stores(6);
  {
    std::vector<std::jthread> threads;
    for (auto& store : stores) {
      threads.emplace_back([&] {
        ready++;
        while (ready < 6) std::this_thread::yield();
        try {
          store = at.open();
          opened++;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::busy) << error.what();
          busy++;
        }
      });
    }
  }
  EXPECT_EQ(opened, 1);
  EXPECT_EQ(busy, 5);
}

// ---- records ----

TEST(Store, KeepsManifestsAndLayouts) {
  StoreFixture at;
  Sha256 id{};
  id[31] = std::byte{7};
  {
    const auto store = at.open();
    EXPECT_EQ(store->find_manifest(1), std::nullopt);
    EXPECT_EQ(store->find_layout(id), std::nullopt);
    for (const std::uint64_t version : {300u, 2u, 1u, 256u}) {
      store->put_manifest(version, "manifest " + std::to_string(version));
    }
    store->put_layout(id, std::string("\0layout", 7));
  }
  const auto store = at.open();
  EXPECT_EQ(store->manifest_numbers(), (Versions{1, 2, 256, 300}));
  EXPECT_EQ(store->find_manifest(256), "manifest 256");
  EXPECT_EQ(store->find_layout(id), std::string("\0layout", 7));
}

TEST(Store, NewestNeverGoesBack) {
  StoreFixture at;
  Sha256 hash{};
  hash[0] = std::byte{0xAB};
  {
    const auto store = at.open();
    store->put_newest({7, hash});
    store->put_newest({6, {}});
    EXPECT_EQ(store->newest().version, 7u);
  }
  const auto store = at.open();
  EXPECT_EQ(store->newest().version, 7u);
  EXPECT_EQ(store->newest().manifest_sha256, hash);
}

TEST(Store, NewestOfManyThreadsIsTheHighest) {
  StoreFixture at;
  {
    const auto store = at.open();
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < 4; thread++) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t i = 1; i <= 10; i++) store->put_newest({i * 4 + thread, {}});
      });
    }
    threads.clear();
    EXPECT_EQ(store->newest().version, 43u);
  }
  EXPECT_EQ(at.open()->newest().version, 43u);
}

TEST(Store, ADamagedRecordLeavesNothingOfTheFirstAttempt) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    store->put_newest({7, {}});
    store->db().write({{ColumnFamily::deltas, "not a version", "x"}});  // read after the images
  }
  const auto store = at.open();
  EXPECT_EQ(store->complete_versions(), Versions{});
  EXPECT_EQ(store->newest().version, 0u);
  EXPECT_FALSE(fs::exists(store->image_directory(1)));
}

// ---- images ----

TEST(Store, RemembersCompleteImages) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 2);
    add_version(*store, 10);
    add_version(*store, 1);
  }
  const auto store = at.open();
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2, 10}));
  EXPECT_TRUE(store->is_complete(10));
  EXPECT_FALSE(store->is_complete(3));
  EXPECT_EQ(store->chunk_hashes(10), (Versions{10000, 10001, 10002}));
  EXPECT_EQ(store->image_directory(10), at.path / "images/10");
  EXPECT_EQ(test::read_tree(store->image_directory(10)).size(), 2u);
}

TEST(Store, AVersionWithoutFilesOrChunksIsCompleteToo) {
  StoreFixture at;
  {
    const auto store = at.open();
    store->begin_images(1);
    store->complete_images(1, {}, {});
  }
  const auto store = at.open();
  EXPECT_TRUE(store->is_complete(1));
  EXPECT_TRUE(store->chunk_hashes(1).empty());
}

TEST(Store, HasNoHashesOfWhatIsNotComplete) {
  StoreFixture at;
  const auto store = at.open();
  store->begin_images(1);
  EXPECT_EQ(code_of([&] { (void)store->chunk_hashes(1); }), ErrorCode::not_found);
}

TEST(Store, DoesNotRecordFilesThatAreNotThere) {
  StoreFixture at;
  const auto store = at.open();
  const fs::path directory = store->begin_images(1);
  test::write_text(directory / "b", "123");
  test::write_text(directory / "a/z", "12345");
  const auto complete = [&](std::vector<std::uint64_t> sizes) {
    store->complete_images(1, sizes, {});
  };
  EXPECT_EQ(code_of([&] { complete({3, 5}); }), ErrorCode::io) << "not by path";
  EXPECT_EQ(code_of([&] { complete({5}); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { complete({5, 3, 1}); }), ErrorCode::io);
  EXPECT_FALSE(store->is_complete(1));
  complete({5, 3});
  EXPECT_TRUE(store->is_complete(1));
}

TEST(Store, BeginsImagesAnew) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    EXPECT_TRUE(fs::is_empty(store->begin_images(1)));
    EXPECT_FALSE(store->is_complete(1));
  }
  EXPECT_FALSE(at.open()->is_complete(1));
}

TEST(Store, RemovesImages) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    add_version(*store, 2);
    store->remove_images(1);
    EXPECT_EQ(store->complete_versions(), Versions{2});
    EXPECT_FALSE(fs::exists(store->image_directory(1)));
    store->remove_images(1);
    store->remove_images(99);
  }
  EXPECT_EQ(at.open()->complete_versions(), Versions{2});
}

TEST(Store, RemovesReadOnlyImages) {
  StoreFixture at;
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(at.parent.path().c_str(), 65534, 65534), 0);
    ASSERT_EQ(::seteuid(65534), 0);
  }
  {
    const auto store = at.open();
    add_version(*store, 1);
    fs::permissions(store->image_directory(1) / "sub",
                    fs::perms::owner_read | fs::perms::owner_exec);
    fs::permissions(store->image_directory(1), fs::perms::owner_read | fs::perms::owner_exec);
    store->remove_images(1);
    EXPECT_FALSE(fs::exists(store->image_directory(1)));
    EXPECT_TRUE(fs::is_empty(store->temporary_directory()));
  }
  ASSERT_EQ(::seteuid(::getuid()), 0);
}

TEST(Store, EmptiesTmpAndRemovesStrayImages) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    test::write_text(store->begin_images(2) / "half", "x");
    test::write_text(store->temporary_directory() / "spool", "x");
    test::write_text(store->temporary_directory() / "deep/spool", "x");
    test::write_text(at.path / "images/01/x", "x");
    test::write_text(at.path / "images/junk", "x");
  }
  test::write_text(at.path / "weightfs.log", "kept");
  const auto store = at.open();
  EXPECT_TRUE(fs::is_empty(store->temporary_directory()));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(at.path / "images")) {
    left.push_back(entry.path().filename());
  }
  EXPECT_EQ(left, std::vector<std::string>{"1"});
  EXPECT_EQ(test::read_text(at.path / "weightfs.log"), "kept");
}

TEST(Store, DropsRecordsWhoseFilesAreNotWhatTheyWere) {
  StoreFixture at;
  {
    const auto store = at.open();
    for (const std::uint64_t version : {1u, 2u, 3u, 4u, 5u}) add_version(*store, version);
  }
  fs::remove(at.path / "images/1/sub/b.bin");
  fs::resize_file(at.path / "images/2/a.bin", 5);
  fs::remove_all(at.path / "images/3");
  test::write_text(at.path / "images/4/more", "x");
  {
    const auto store = at.open();
    EXPECT_EQ(store->complete_versions(), Versions{5});
    EXPECT_FALSE(fs::exists(at.path / "images/1"));
  }
  EXPECT_EQ(at.open()->complete_versions(), Versions{5}) << "the records went too";
}

// ---- a cache that can be lost ----

TEST(Store, AnotherFormatIsEmptiedAndRebuilt) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  test::write_text(at.path / "weightfs.log", "kept");
  test::write_text(at.path / "STORE", "weightfs store 2\n" + std::string(kStoreId) + "\n" +
                                          std::string(kStoreUrl) + "\n");
  {
    const auto store = at.open();
    EXPECT_TRUE(store->complete_versions().empty());
    add_version(*store, 2);
  }
  EXPECT_EQ(test::read_text(at.path / "STORE").find("weightfs store 1\n"), 0u);
  EXPECT_EQ(test::read_text(at.path / "weightfs.log"), "kept");
  EXPECT_EQ(at.open()->complete_versions(), Versions{2});
}

TEST(Store, AnotherFormatOfAnotherRepositoryIsLeftAlone) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  test::write_text(at.path / "STORE", "weightfs store 2\n" + std::string(kOtherId) + "\n" +
                                          std::string(kStoreUrl) + "\n");
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::invalid);
  EXPECT_TRUE(fs::exists(at.path / "images/1"));
}

TEST(Store, ADamagedDatabaseIsRebuilt) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  test::write_text(at.path / "db/CURRENT", "garbage");
  {
    const auto store = at.open();
    EXPECT_TRUE(store->complete_versions().empty());
    EXPECT_FALSE(fs::exists(at.path / "images/1"));
    add_version(*store, 2);
  }
  EXPECT_EQ(at.open()->complete_versions(), Versions{2});
}

TEST(Store, ALostDatabaseIsRebuilt) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  fs::remove_all(at.path / "db");
  EXPECT_TRUE(at.open()->complete_versions().empty());
}

TEST(Store, MalformedRecordsAreRebuilt) {
  std::string key;
  append_be64(key, 1);
  const std::vector<Db::Change> bad{
      {ColumnFamily::hashes, key, "seven b"},
      {ColumnFamily::hashes, "short", std::string(8, 'x')},
      {ColumnFamily::images, key, std::string(9, 'x')},
      {ColumnFamily::images, key + std::string(4, '\0'), "x"},
      {ColumnFamily::images, key + std::string(4, '\0'), "\3" + std::string(8, 'x')},
      {ColumnFamily::images, key + "\1\1\1\1", "\2" + std::string(8, 'x')},
      {ColumnFamily::store, "newest", "short"},
      {ColumnFamily::store, "format", "0"},
      {ColumnFamily::store, "repository", std::string(kOtherId)},
  };
  for (const Db::Change& change : bad) {
    StoreFixture at;
    { add_version(*at.open(), 1); }
    { Db::open(at.path / "db")->write({change}); }
    const auto store = at.open();
    EXPECT_TRUE(store->complete_versions().empty()) << change.key;
    add_version(*store, 2);
  }
}

// ---- a full disk ----

TEST(Store, OnAFullDiskItServesWhatItHas) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    add_version(*store, 2);
    store->put_manifest(2, "manifest");
  }
  fs::remove(at.path / "images/1/a.bin");
  test::write_text(at.path / "images/7/half", "x");
  at.free_bytes = 0;
  const auto store = at.open(kStoreId, "file:///moved");
  EXPECT_EQ(store->complete_versions(), Versions{2});
  EXPECT_EQ(store->chunk_hashes(2).size(), 3u);
  EXPECT_EQ(store->find_manifest(2), "manifest");
  EXPECT_FALSE(fs::exists(at.path / "images/7")) << "removing needs no room";
  EXPECT_EQ(code_of([&] { store->put_manifest(3, "x"); }), ErrorCode::no_space);
  EXPECT_EQ(code_of([&] { store->put_newest({3, {}}); }), ErrorCode::no_space);
  EXPECT_EQ(store->newest().version, 0u);

  at.free_bytes = kStorePlenty;
  store->put_manifest(3, "x");
  add_version(*store, 3);
  EXPECT_EQ(store->complete_versions(), (Versions{2, 3}));
}

TEST(Store, ANewOneNeedsRoom) {
  StoreFixture at;
  at.free_bytes = 0;
  EXPECT_EQ(code_of([&] { at.open(); }), ErrorCode::no_space);
  at.free_bytes = kStorePlenty;
  at.open();
}

TEST(Store, ImagesThatCannotBeRecordedAreNotComplete) {
  StoreFixture at;
  {
    const auto store = at.open();
    at.free_bytes = 0;
    EXPECT_EQ(code_of([&] { add_version(*store, 1); }), ErrorCode::no_space);
    EXPECT_FALSE(store->is_complete(1));
  }
  EXPECT_FALSE(at.open()->is_complete(1));
}

TEST(Store, OnAFullDiskImagesCanBeRemoved) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    at.free_bytes = 0;
    store->remove_images(1);
    EXPECT_FALSE(store->is_complete(1));
    EXPECT_FALSE(fs::exists(at.path / "images/1"));
  }
  EXPECT_TRUE(at.open()->complete_versions().empty());
  at.free_bytes = kStorePlenty;
  add_version(*at.open(), 1);
  EXPECT_TRUE(at.open()->is_complete(1));
}

// ---- room ----

TEST(Store, CountsHardLinksOnce) {
  StoreFixture at;
  const auto store = at.open();
  add_version(*store, 1, 1000);
  EXPECT_EQ(store->image_bytes(), 1000u);
  const fs::path directory = store->begin_images(2);
  fs::create_hard_link(store->image_directory(1) / "a.bin", directory / "a.bin");
  test::write_text(directory / "b.bin", std::string(5, 'x'));
  const Versions sizes{990, 5};
  store->complete_images(2, sizes, {});
  EXPECT_EQ(store->image_bytes(), 1005u);
  store->remove_images(1);
  EXPECT_EQ(store->image_bytes(), 995u);
}

TEST(Store, MakesRoomFromTheOldestOn) {
  StoreFixture at;
  at.limits.store_bytes = 3500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 1000);
  Versions asked;
  const InUse use(*store, false, &asked);
  const auto latest = keep(*store, 3);
  store->evictor().evict_for_images(500);
  EXPECT_TRUE(asked.empty()) << "it fits as it is";
  store->evictor().evict_for_images(1000);
  EXPECT_EQ(asked, Versions{1});
  EXPECT_EQ(store->complete_versions(), (Versions{2, 3}));
  store->evictor().evict_for_images(2500);
  EXPECT_EQ(store->complete_versions(), Versions{3});
}

TEST(Store, ByDefaultKeepsThreeVersions) {
  StoreFixture at;
  const auto store = at.open();
  for (std::uint64_t version = 1; version <= 6; version++) {
    store->evictor().evict_for_images(1000);
    add_version(*store, version, 1000);
  }
  EXPECT_EQ(store->complete_versions(), (Versions{4, 5, 6}));
}

// A version that is being filled, and whether it may be read now.
class Partial {
 public:
  Partial(Store& store, std::uint64_t version, std::size_t bytes) {
    test::write_text(store.begin_images(version) / "a.bin", std::string(bytes, 'p'));
    store.begin_partial(version, bytes,
                        {.nobody_reads = [this] { return !is_read; },
                         .remove =
                             [&store, version] {
                               store.remove_images(version);
                               store.end_partial(version);
                             }});
  }
  std::atomic<bool> is_read = false;
};

TEST(Store, WhatIsPartialGoesFirstTheFirstBegunFirst) {
  StoreFixture at;
  at.limits.store_bytes = 4500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 1000);
  const auto latest = keep(*store, 2);
  const Partial third(*store, 7, 1000), fourth(*store, 3, 1000);
  EXPECT_TRUE(store->is_partial(7));
  store->evictor().evict_for_images(500);
  EXPECT_TRUE(store->is_partial(7)) << "it fits as it is";
  store->evictor().evict_for_images(1500);
  EXPECT_FALSE(store->is_partial(7));
  EXPECT_FALSE(fs::exists(store->image_directory(7)));
  EXPECT_TRUE(store->is_partial(3));
  store->evictor().evict_for_images(2500);
  EXPECT_FALSE(store->is_partial(3));
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2}));
  std::string message;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(3600); }, &message),
            ErrorCode::no_space);
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2})) << "it would not be enough";
}

TEST(Store, WhatIsPartialAndReadStaysAndDoesNotCount) {
  StoreFixture at;
  at.limits.store_bytes = 2500;
  const auto store = at.open();
  add_version(*store, 5, 1000);
  const auto latest = keep(*store, 5);
  Partial one(*store, 1, 1000), two(*store, 2, 1000);
  one.is_read = two.is_read = true;
  store->evictor().evict_for_images(1000);
  EXPECT_TRUE(store->is_partial(1));
  EXPECT_TRUE(store->is_partial(2));
  one.is_read = false;
  store->evictor().evict_for_images(1000);
  EXPECT_FALSE(store->is_partial(1));
  EXPECT_TRUE(store->is_partial(2));
}

TEST(Store, WhatIsPartialAndFollowedStaysAndCounts) {
  StoreFixture at;
  at.limits.store_bytes = 1500;
  const auto store = at.open();
  const Partial first(*store, 1, 1000);
  const auto latest = keep(*store, 1);
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1000); }), ErrorCode::no_space);
  EXPECT_TRUE(store->is_partial(1));
}

TEST(Store, ByDefaultAPartialVersionIsAsGoodAMeasureAsACompleteOne) {
  StoreFixture at;
  const auto store = at.open();
  const Partial ninth(*store, 9, 1000);
  const auto first = keep(*store, 9);
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 10);
  store->evictor().evict_for_images(10);
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2})) << "three of 1000 bytes may be here";
  store->evictor().evict_for_delta(10);
  const auto delta = store->deltas().begin(2, 10);
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2}));
  store->deltas().abandon(2, delta);
}

TEST(Store, WaitsForWhatIsPartial) {
  StoreFixture at;
  const auto store = at.open();
  store->wait_partial(1, {});
  store->begin_partial(1, 10, {});
  const Context soon = Context{}.within(std::chrono::milliseconds(1));
  EXPECT_EQ(code_of([&] { store->wait_partial(1, soon); }), ErrorCode::timed_out);
  std::stop_source stop;
  {
    std::jthread waiter([&] {
      EXPECT_EQ(code_of([&] { store->wait_partial(1, {stop.get_token()}); }), ErrorCode::cancelled);
    });
    stop.request_stop();
  }
  {
    std::string message;
    std::jthread waiter([&] {
      EXPECT_EQ(code_of([&] { store->wait_partial(1, {}); }, &message), ErrorCode::corrupt);
      EXPECT_EQ(message, "packs/1/x is damaged");
    });
    store->set_partial_error(1, Error(ErrorCode::corrupt, "packs/1/x is damaged"));
  }
  store->set_partial_error(1, std::nullopt);
  EXPECT_EQ(code_of([&] { store->wait_partial(1, soon); }), ErrorCode::timed_out);
  std::jthread waiter([&] { store->wait_partial(1, {}); });
  store->end_partial(1);
  waiter.join();
  EXPECT_FALSE(store->is_partial(1));
  store->end_partial(1);
  store->set_partial_error(1, Error(ErrorCode::io, "nobody knows it"));
  store->wait_partial(1, {});
}

TEST(Store, NeverTouchesWhatMustBeKept) {
  StoreFixture at;
  at.limits.store_bytes = 2500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 1000);
  const auto latest = keep(*store, 1);
  store->evictor().evict_for_images(1000);
  EXPECT_EQ(store->complete_versions(), Versions{1});
}

TEST(Store, RemovesNothingIfItWouldNotHelp) {
  StoreFixture at;
  at.limits.store_bytes = 1500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 1000);
  const auto latest = keep(*store, 2);
  std::string message;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1000); }, &message),
            ErrorCode::no_space);
  EXPECT_NE(message.find("--store-size"), std::string::npos) << message;
  EXPECT_NE(message.find("500 B more needed"), std::string::npos) << message;
  at.free_bytes = kRecordsFloorBytes;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1400); }), ErrorCode::no_space);
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2}));
}

TEST(Store, VersionsInUseStayAndDoNotCount) {
  StoreFixture at;
  at.limits.store_bytes = 2500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 1000);
  const InUse use(*store, true);
  const auto latest = keep(*store, 2);
  store->evictor().evict_for_images(1000);
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2}));
}

TEST(Store, FreeSpaceIsAHardBoundAlsoForVersionsInUse) {
  StoreFixture at;
  at.limits.free_bytes_min = 1ull << 30;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 1000);
  at.free_bytes = (1ull << 30) + 500;
  const InUse use(*store, true);
  const auto latest = keep(*store, 2);
  std::string message;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1000); }, &message),
            ErrorCode::no_space);
  EXPECT_NE(message.find("--min-free"), std::string::npos) << message;
  EXPECT_EQ(store->complete_versions(), (Versions{1, 2}));
}

TEST(Store, RemovesForFreeSpaceToo) {
  StoreFixture at;
  at.limits = {1ull << 40, 1ull << 30};
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 1000);
  at.free_bytes = (1ull << 30) + 500;
  const auto latest = keep(*store, 3);
  // What the removal is going to give back.
  const InUse use(*store, false, nullptr, [&] { at.free_bytes += 1000; });
  store->evictor().evict_for_images(1000);
  EXPECT_EQ(store->complete_versions(), (Versions{2, 3}));
}

TEST(Store, WhatIsNoImageCountsAgainstFreeSpaceOnly) {
  StoreFixture at;
  at.limits = {1500, 1ull << 30};
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 1000);
  const auto latest = keep(*store, 3);
  {
    const InUse use(*store, true, nullptr, [] { ADD_FAILURE() << "there is room"; });
    store->evictor().evict_for_free_bytes(1ull << 31);
  }
  at.free_bytes = (1ull << 30) + 500;
  // What the removal is going to give back.
  const InUse use(*store, false, nullptr, [&] { at.free_bytes += 1000; });
  store->evictor().evict_for_free_bytes(1000);
  EXPECT_EQ(store->complete_versions(), (Versions{2, 3}));
  at.free_bytes = 1ull << 30;
  EXPECT_EQ(code_of([&] {
              const auto base = keep(*store, 2);
              store->evictor().evict_for_free_bytes(2000);
            }),
            ErrorCode::no_space);
}

TEST(Store, LeavesTheSmallerOfFivePercentAndTenGiB) {
  StoreFixture at;
  const auto store = at.open();
  at.total_bytes = 100ull << 30;
  at.free_bytes = (5ull << 30) + 999;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1000); }), ErrorCode::no_space);
  at.free_bytes++;
  store->evictor().evict_for_images(1000);
  at.total_bytes = 1ull << 50;
  at.free_bytes = (10ull << 30) + 999;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1000); }), ErrorCode::no_space);
  at.free_bytes++;
  store->evictor().evict_for_images(1000);
}

TEST(Store, NeverGoesBelowTheFloorOfRecords) {
  StoreFixture at;
  at.limits.free_bytes_min = 0;
  const auto store = at.open();
  at.free_bytes = kRecordsFloorBytes + 999;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1000); }), ErrorCode::no_space);
  at.free_bytes++;
  store->evictor().evict_for_images(1000);
}

TEST(Store, AbsurdSizesDoNotOverflow) {
  StoreFixture at;
  at.limits = {~0ull, ~0ull};
  const auto store = at.open();
  add_version(*store, 1);
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(~0ull); }), ErrorCode::no_space);
  EXPECT_TRUE(store->is_complete(1));
}

// ---- who still reads ----

class NobodyReads : public testing::Test {
 protected:
  void SetUp() override {
    handler_ = ::signal(SIGIO, SIG_IGN);
    test::write_text(directory_ / "a.bin", "some bytes");
    test::write_text(directory_ / "sub/b.bin", "some bytes");
    if (!nobody_reads(directory_.path())) GTEST_SKIP() << "no leases on this file system";
  }
  void TearDown() override { ::signal(SIGIO, handler_); }

  [[nodiscard]] File open(int flags = O_RDONLY) const {
    return File::open(directory_ / "sub/b.bin", flags);
  }
  TempDir directory_;

 private:
  sighandler_t handler_{};
};

TEST_F(NobodyReads, SeesADescriptor) {
  {
    const File reader = open();
    EXPECT_FALSE(nobody_reads(directory_.path()));
  }
  EXPECT_TRUE(nobody_reads(directory_.path()));
}

TEST_F(NobodyReads, SeesAMappingWithoutADescriptor) {
  for (const int kind : {MAP_SHARED, MAP_PRIVATE}) {
    void* memory = nullptr;
    {
      const File reader = open();
      memory = ::mmap(nullptr, 10, PROT_READ, kind, reader.fd(), 0);
      ASSERT_NE(memory, MAP_FAILED);
    }
    EXPECT_FALSE(nobody_reads(directory_.path()));
    ASSERT_EQ(::munmap(memory, 10), 0);
    EXPECT_TRUE(nobody_reads(directory_.path()));
  }
}

TEST_F(NobodyReads, DoesNotSeeAPathDescriptor) {
  const File path_only = open(O_PATH);
  EXPECT_TRUE(nobody_reads(directory_.path()));
}

TEST_F(NobodyReads, LeavesNoLeaseBehind) {
  ASSERT_TRUE(nobody_reads(directory_.path()));
  const File reader = open(O_RDONLY | O_NONBLOCK);
  EXPECT_TRUE(static_cast<bool>(reader));
}

TEST_F(NobodyReads, WorksOnAUsersReadOnlyFiles) {
  for (const char* name : {"a.bin", "sub/b.bin"}) {
    fs::permissions(directory_ / name, fs::perms::owner_read);
    if (::geteuid() == 0) {
      ASSERT_EQ(::chown((directory_ / name).c_str(), 65534, 65534), 0);
    }
  }
  fs::permissions(directory_.path(), fs::perms::all);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  EXPECT_TRUE(nobody_reads(directory_.path()));
  const File reader = open();
  EXPECT_FALSE(nobody_reads(directory_.path()));
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
}

TEST(NobodyReadsADirectory, ThatIsNotThere) {
  const TempDir directory;
  EXPECT_TRUE(nobody_reads(directory / "absent"));
}

TEST_F(NobodyReads, DecidesForMakeRoomIfNobodyElseDoes) {
  StoreFixture at;
  at.limits.store_bytes = 2500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 800);
  const File reader = File::open(store->image_directory(1) / "a.bin", O_RDONLY);
  const auto latest = keep(*store, 3);
  store->evictor().evict_for_images(1500);
  EXPECT_EQ(store->complete_versions(), (Versions{1, 3}));
}

TEST_F(NobodyReads, AsksOnlyForWhatWouldGo) {
  const File reader = open();
  EXPECT_FALSE(nobody_reads(directory_.path()));
  const TempDir elsewhere;
  fs::create_hard_link(directory_ / "sub/b.bin", elsewhere / "b.bin");
  EXPECT_TRUE(nobody_reads(directory_.path()));
  EXPECT_TRUE(nobody_reads(elsewhere.path()));
  const fs::path both[] = {directory_.path(), elsewhere.path()};
  EXPECT_FALSE(nobody_reads(both)) << "both go";
  fs::create_hard_link(directory_ / "sub/b.bin", directory_ / "twice.bin");
  fs::remove(elsewhere / "b.bin");
  EXPECT_FALSE(nobody_reads(directory_.path())) << "both names are in it";
}

// A shard that never changes is one file in every version, and an engine has it mapped for ever.
TEST_F(NobodyReads, AFileThatStaysUnderAnotherNameBlocksNoEviction) {
  StoreFixture at;
  at.limits.store_bytes = 2000;
  const auto store = at.open();
  add_version(*store, 1, 1000);
  for (const std::uint64_t version : {2u, 3u}) {
    const fs::path directory = store->begin_images(version);
    fs::create_hard_link(store->image_directory(1) / "a.bin", directory / "a.bin");
    test::write_text(directory / "sub/b.bin", std::string(10, 'b'));
    store->complete_images(version, Versions{990, 10}, {});
  }
  const auto latest = keep(*store, 3);
  const File shared = File::open(store->image_directory(1) / "a.bin", O_RDONLY);
  {
    const File own = File::open(store->image_directory(2) / "sub/b.bin", O_RDONLY);
    store->evictor().evict_for_images(990);
    EXPECT_EQ(store->complete_versions(), (Versions{2, 3}));
  }
  store->evictor().evict_for_images(995);
  EXPECT_EQ(store->complete_versions(), Versions{3});
  EXPECT_EQ(store->image_bytes(), 1000u);
}

// ---- places ----

// Places of a user who is not root: with $XDG_CACHE_HOME or $HOME below a directory of the test.
class StorePlaces : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() == 0) {
      ASSERT_EQ(::chown(home_.path().c_str(), 65534, 65534), 0);
      ASSERT_EQ(::seteuid(65534), 0);
    }
    ::setenv("XDG_CACHE_HOME", (home_ / "cache").c_str(), 1);
    ::setenv("HOME", home_.path().c_str(), 1);
  }
  void TearDown() override {
    ASSERT_EQ(::seteuid(::getuid()), 0);
    restore("XDG_CACHE_HOME", cache_);
    restore("HOME", home_variable_);
  }
  TempDir home_;

 private:
  static std::optional<std::string> variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }
  static void restore(const char* name, const std::optional<std::string>& value) {
    if (value) ::setenv(name, value->c_str(), 1);
    if (!value) ::unsetenv(name);
  }
  const std::optional<std::string> cache_ = variable("XDG_CACHE_HOME");
  const std::optional<std::string> home_variable_ = variable("HOME");
};

TEST_F(StorePlaces, FollowTheUsersCache) {
  EXPECT_EQ(Store::default_path(kStoreId), home_ / "cache/weightfs" / kStoreId);
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(Store::default_path(kStoreId), home_ / ".cache/weightfs" / kStoreId);
  ::setenv("XDG_CACHE_HOME", "not/absolute", 1);
  EXPECT_EQ(Store::default_path(kStoreId), home_ / ".cache/weightfs" / kStoreId);
  ::unsetenv("HOME");
  EXPECT_EQ(code_of([&] { (void)Store::default_path(kStoreId); }), ErrorCode::invalid);
}

TEST_F(StorePlaces, FindTheStoreOfAUrl) {
  EXPECT_EQ(Store::find_default_by_url(kStoreUrl), std::nullopt);
  const fs::path mine = Store::default_path(kStoreId), other = Store::default_path(kOtherId);
  Store::open(mine, kStoreId, kStoreUrl, {});
  Store::open(other, kOtherId, "file:///other", {});
  Store::open(mine.string() + ".publish", kStoreId, kStoreUrl, {});
  EXPECT_EQ(Store::find_default_by_url(kStoreUrl), mine);
  EXPECT_EQ(Store::find_default_by_url("file:///other"), other);
  EXPECT_EQ(Store::find_default_by_url("file:///third"), std::nullopt);
}

TEST_F(StorePlaces, FindTheStoreOfASecondMountToo) {
  const std::string second = Store::default_path(kStoreId).string() + ".2";
  for (const char* other : {".", ".x", ".2x", "2"}) {
    Store::open(Store::default_path(kStoreId).string() + other, kStoreId, kStoreUrl, {});
  }
  EXPECT_EQ(Store::find_default_by_url(kStoreUrl), std::nullopt);
  Store::open(second, kStoreId, kStoreUrl, {});
  EXPECT_EQ(Store::find_default_by_url(kStoreUrl), second);
}

TEST_F(StorePlaces, PreferTheStoreThatWasUsedLast) {
  const fs::path mine = Store::default_path(kStoreId), other = Store::default_path(kOtherId);
  Store::open(mine, kStoreId, kStoreUrl, {});
  Store::open(other, kOtherId, kStoreUrl, {});
  fs::last_write_time(mine / "lock", fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(Store::find_default_by_url(kStoreUrl), other);
  fs::last_write_time(other / "lock", fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(Store::find_default_by_url(kStoreUrl), mine);
}

TEST(StorePlace, OfRootIsVarLib) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(Store::default_path(kStoreId), fs::path("/var/lib/weightfs") / kStoreId);
}

TEST(StoreUse, IsToldToWhoFindsTheStoreHeld) {
  StoreFixture at;
  EXPECT_FALSE(find_last_user(at.path));
  {
    const auto store = at.open();
    write_user(at.path, "/mnt/a b");
    try {
      at.open();
      ADD_FAILURE() << "the store was opened twice";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::busy);
      EXPECT_NE(std::string(error.what()).find(fmt::format("process {}, for /mnt/a b", ::getpid())),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(find_last_user(at.path)->place, "/mnt/a b") << "it stays";
  for (const char* text : {"", "12", "12\n", "x\n/mnt\n", "12 /mnt\n"}) {
    test::write_text(at.path / "used-by", text);
    EXPECT_FALSE(find_last_user(at.path)) << text;
  }
}

// ---- the lock of the images ----

TEST(StoreImagesLock, IsHeldByOneAtATimeAndBelongsToNoThread) {
  StoreFixture at;
  const auto store = at.open();
  ImagesLock lock = store->lock_images({});
  EXPECT_TRUE(lock);
  std::atomic<bool> is_free{false};
  std::jthread other([&] {
    const ImagesLock second = store->lock_images({});
    EXPECT_TRUE(is_free);
  });
  EXPECT_EQ(code_of([&] { static_cast<void>(store->lock_images(Context{}.within({}))); }),
            ErrorCode::timed_out);
  is_free = true;
  std::jthread([moved = std::move(lock)] {}).join();
  other.join();
  EXPECT_TRUE(store->lock_images({}));
}

TEST(StoreImagesLock, IsNotWaitedForByWhoIsStopped) {
  StoreFixture at;
  const auto store = at.open();
  const ImagesLock lock = store->lock_images({});
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  const Context context{stop.get_token(), Clock::time_point::max()};
  EXPECT_EQ(code_of([&] { static_cast<void>(store->lock_images(context)); }), ErrorCode::cancelled);
}

TEST(StoreIdentity, NeedsAWholeMarker) {
  const TempDir directory;
  EXPECT_FALSE(Store::find_identity(directory / "absent"));
  for (const char* text : {"", "weightfs", "weightfs store 1", "weightfs store 1\nid\n",
                           "weightfs store 1\nid\nurl", "something else 1\nid\nurl\n"}) {
    test::write_text(directory / "STORE", text);
    EXPECT_FALSE(Store::find_identity(directory.path())) << text;
  }
  test::write_text(directory / "STORE", "weightfs store 1\nid\nurl\n");
  EXPECT_EQ(Store::find_identity(directory.path())->url, "url");
}

}  // namespace
}  // namespace weightfs
