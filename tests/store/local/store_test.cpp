// Store: its directory, records and images, what damages them, and where it lies.
#include "store/local/store.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/local/store_directory.hpp"
#include "store/local/sync_images.hpp"
#include "tests/store/local/store_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/rotten_files.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::add_version;
using test::code_of;
using test::kOtherId;
using test::kStoreId;
using test::kStorePlenty;
using test::kStoreUrl;
using test::StoreFixture;
using test::TempDir;
using test::Versions;

// ---- the directory ----

TEST(Store, IsMadePrivateAndMarked) {
  StoreFixture at;
  const auto store = at.open();
  EXPECT_EQ(fs::status(at.path).permissions(), fs::perms::owner_all);
  EXPECT_EQ(test::read_text(at.path / "STORE"),
            "weightfs store 1\n" + std::string(kStoreId) + "\n" + std::string(kStoreUrl) + "\n");
  EXPECT_TRUE(fs::is_directory(store->temporary_directory()));
  EXPECT_TRUE(store->images().complete_versions().empty());
  EXPECT_EQ(store->manifests().newest().version, 0u);
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
  EXPECT_TRUE(at.open()->images().is_complete(1));
}

TEST(Store, RemembersWhereTheBucketMoved) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  EXPECT_TRUE(at.open(kStoreId, "file:///elsewhere")->images().is_complete(1));
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
    EXPECT_EQ(store->manifests().find_manifest(1), std::nullopt);
    EXPECT_EQ(store->manifests().find_layout(id), std::nullopt);
    for (const std::uint64_t version : {300u, 2u, 1u, 256u}) {
      store->manifests().put_manifest(version, "manifest " + std::to_string(version));
    }
    store->manifests().put_layout(id, std::string("\0layout", 7));
  }
  const auto store = at.open();
  EXPECT_EQ(store->manifests().manifest_numbers(), (Versions{1, 2, 256, 300}));
  EXPECT_EQ(store->manifests().find_manifest(256), "manifest 256");
  EXPECT_EQ(store->manifests().find_layout(id), std::string("\0layout", 7));
}

void expect_only_these_lost(const char* family, test::Rot rot) {
  SCOPED_TRACE(family + std::to_string(static_cast<int>(rot)));
  StoreFixture at;
  const bool has_manifest = std::string_view(family) != "manifests";
  {
    const auto store = at.open();
    add_version(*store, 1);
    store->manifests().put_manifest(1, "manifest");
    store->manifests().put_layout({}, "layout");
    store->manifests().put_newest({1, {}});
  }
  at.open();  // which writes the records to files
  ASSERT_GT(test::rot_family(at.path / "db", family, rot), 0u);
  {
    const auto store = at.open();
    EXPECT_TRUE(store->images().is_complete(1));
    EXPECT_EQ(store->manifests().newest().version, 1u);
    EXPECT_EQ(store->manifests().manifest_numbers().size(), has_manifest ? 1u : 0u);
    EXPECT_EQ(store->manifests().find_manifest(1).has_value(), has_manifest);
    EXPECT_EQ(store->manifests().find_layout({}).has_value(), !has_manifest);
    store->manifests().put_manifest(1, "manifest");
    store->manifests().put_layout({}, "layout");
  }
  const auto store = at.open();
  EXPECT_EQ(store->manifests().find_manifest(1), "manifest");
  EXPECT_EQ(store->manifests().find_layout({}), "layout");
}

// It was found only when somebody read them, and then no mount started; or when RocksDB opened a
// file of theirs, and then all images went.
TEST(Store, RecordsThatRottedAndTheBucketHasAreForgottenAndNothingElse) {
  for (const char* family : {"manifests", "layouts"}) {
    for (const test::Rot rot : test::kRots) expect_only_these_lost(family, rot);
  }
}

// What it has besides is in no bucket, so it is not guessed at.
TEST(Store, OtherRecordsThatRottedCostAllOfThem) {
  for (const test::Rot rot : test::kRots) {
    StoreFixture at;
    {
      const auto store = at.open();
      add_version(*store, 1);
      test::install_patches(*store, 1);
    }
    at.open();
    auto files = test::files_of_family(at.path / "db", "images");
    for (auto& file : test::files_of_family(at.path / "db", "patches")) files.push_back(file);
    ASSERT_GE(files.size(), 2u);
    for (const auto& file : files) test::rot_file(file, rot);
    const auto store = at.open();
    EXPECT_TRUE(store->images().complete_versions().empty());
    EXPECT_TRUE(store->patches().list().empty());
    add_version(*store, 1);
  }
}

TEST(Store, KeepsPatchesAndLosesThemWithItsRecords) {
  StoreFixture at;
  {
    const auto store = at.open();
    EXPECT_TRUE(store->patches().list().empty());
    test::install_patches(*store, 1);
  }
  {
    const auto store = at.open();
    const std::vector<SpanInfo> spans = store->patches().list();
    ASSERT_EQ(spans.size(), 1u);
    EXPECT_TRUE(store->patches().find_patch(spans[0], {0, 0}));
    EXPECT_TRUE(std::filesystem::is_empty(store->temporary_directory()));
    store->db().write({{ColumnFamily::store, "format", "0"}});
  }
  EXPECT_TRUE(at.open()->patches().list().empty());
}

TEST(Store, NewestNeverGoesBack) {
  StoreFixture at;
  Sha256 hash{};
  hash[0] = std::byte{0xAB};
  {
    const auto store = at.open();
    store->manifests().put_newest({7, hash});
    store->manifests().put_newest({6, {}});
    EXPECT_EQ(store->manifests().newest().version, 7u);
  }
  const auto store = at.open();
  EXPECT_EQ(store->manifests().newest().version, 7u);
  EXPECT_EQ(store->manifests().newest().manifest_sha256, hash);
}

TEST(Store, NewestOfManyThreadsIsTheHighest) {
  StoreFixture at;
  {
    const auto store = at.open();
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 0; thread < 4; thread++) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t i = 1; i <= 10; i++) store->manifests().put_newest({i * 4 + thread, {}});
      });
    }
    threads.clear();
    EXPECT_EQ(store->manifests().newest().version, 43u);
  }
  EXPECT_EQ(at.open()->manifests().newest().version, 43u);
}

TEST(Store, ADamagedRecordLeavesNothingOfTheFirstAttempt) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    store->manifests().put_newest({7, {}});
    store->db().write({{ColumnFamily::deltas, "not a version", "x"}});  // read after the images
  }
  const auto store = at.open();
  EXPECT_EQ(store->images().complete_versions(), Versions{});
  EXPECT_EQ(store->manifests().newest().version, 0u);
  EXPECT_FALSE(fs::exists(store->images().image_directory(1)));
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
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2, 10}));
  EXPECT_TRUE(store->images().is_complete(10));
  EXPECT_FALSE(store->images().is_complete(3));
  EXPECT_EQ(store->images().chunk_hashes(10), (Versions{10000, 10001, 10002}));
  EXPECT_EQ(store->images().image_directory(10), at.path / "images/10");
  EXPECT_EQ(test::read_tree(store->images().image_directory(10)).size(), 2u);
}

TEST(Store, AVersionWithoutFilesOrChunksIsCompleteToo) {
  StoreFixture at;
  {
    const auto store = at.open();
    store->images().begin_images(1);
    store->images().complete_images(1, {}, {});
    sync_images(store->images(), 1);
  }
  const auto store = at.open();
  EXPECT_TRUE(store->images().is_complete(1));
  EXPECT_TRUE(store->images().chunk_hashes(1).empty());
}

TEST(Store, HasNoHashesOfWhatIsNotComplete) {
  StoreFixture at;
  const auto store = at.open();
  store->images().begin_images(1);
  EXPECT_EQ(code_of([&] { (void)store->images().chunk_hashes(1); }), ErrorCode::not_found);
}

TEST(Store, DoesNotRecordFilesThatAreNotThere) {
  StoreFixture at;
  const auto store = at.open();
  const fs::path directory = store->images().begin_images(1);
  test::write_text(directory / "b", "123");
  test::write_text(directory / "a/z", "12345");
  const auto complete = [&](std::vector<std::uint64_t> sizes) {
    store->images().complete_images(1, sizes, {});
  };
  EXPECT_EQ(code_of([&] { complete({3, 5}); }), ErrorCode::io) << "not by path";
  EXPECT_EQ(code_of([&] { complete({5}); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { complete({5, 3, 1}); }), ErrorCode::io);
  EXPECT_FALSE(store->images().is_complete(1));
  complete({5, 3});
  EXPECT_TRUE(store->images().is_complete(1));
}

TEST(Store, BeginsImagesAnew) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    EXPECT_TRUE(fs::is_empty(store->images().begin_images(1)));
    EXPECT_FALSE(store->images().is_complete(1));
  }
  EXPECT_FALSE(at.open()->images().is_complete(1));
}

TEST(Store, RemovesImages) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    add_version(*store, 2);
    store->images().remove_images(1);
    EXPECT_EQ(store->images().complete_versions(), Versions{2});
    EXPECT_FALSE(fs::exists(store->images().image_directory(1)));
    store->images().remove_images(1);
    store->images().remove_images(99);
  }
  EXPECT_EQ(at.open()->images().complete_versions(), Versions{2});
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
    fs::permissions(store->images().image_directory(1) / "sub",
                    fs::perms::owner_read | fs::perms::owner_exec);
    fs::permissions(store->images().image_directory(1),
                    fs::perms::owner_read | fs::perms::owner_exec);
    store->images().remove_images(1);
    EXPECT_FALSE(fs::exists(store->images().image_directory(1)));
    EXPECT_TRUE(fs::is_empty(store->temporary_directory()));
  }
  ASSERT_EQ(::seteuid(::getuid()), 0);
}

TEST(Store, EmptiesTmpAndRemovesStrayImages) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    test::write_text(store->images().begin_images(2) / "half", "x");
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
    EXPECT_EQ(store->images().complete_versions(), Versions{5});
    EXPECT_FALSE(fs::exists(at.path / "images/1"));
  }
  EXPECT_EQ(at.open()->images().complete_versions(), Versions{5}) << "the records went too";
}

// ---- damage and other formats ----

TEST(Store, AnotherFormatIsEmptiedAndRebuilt) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  test::write_text(at.path / "weightfs.log", "kept");
  test::write_text(at.path / "STORE", "weightfs store 2\n" + std::string(kStoreId) + "\n" +
                                          std::string(kStoreUrl) + "\n");
  {
    const auto store = at.open();
    EXPECT_TRUE(store->images().complete_versions().empty());
    add_version(*store, 2);
  }
  EXPECT_EQ(test::read_text(at.path / "STORE").find("weightfs store 1\n"), 0u);
  EXPECT_EQ(test::read_text(at.path / "weightfs.log"), "kept");
  EXPECT_EQ(at.open()->images().complete_versions(), Versions{2});
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
    EXPECT_TRUE(store->images().complete_versions().empty());
    EXPECT_FALSE(fs::exists(at.path / "images/1"));
    add_version(*store, 2);
  }
  EXPECT_EQ(at.open()->images().complete_versions(), Versions{2});
}

TEST(Store, ALostDatabaseIsRebuilt) {
  StoreFixture at;
  { add_version(*at.open(), 1); }
  fs::remove_all(at.path / "db");
  EXPECT_TRUE(at.open()->images().complete_versions().empty());
}

TEST(Store, MalformedRecordsAreRebuilt) {
  std::string key;
  append_be64(key, 1);
  const std::vector<Db::Change> bad{
      {ColumnFamily::hashes, key, "seven b"},
      {ColumnFamily::hashes, "short", std::string(8, 'x')},
      {ColumnFamily::images, key, std::string(9, 'x')},
      {ColumnFamily::images, key + std::string(4, '\0'), "x"},
      {ColumnFamily::images, key + std::string(4, '\0'), "\4" + std::string(8, 'x')},
      {ColumnFamily::images, key + "\1\1\1\1", "\2" + std::string(8, 'x')},
      {ColumnFamily::store, "newest", "short"},
      {ColumnFamily::store, "format", "0"},
      {ColumnFamily::store, "repository", std::nullopt},
  };
  for (const Db::Change& change : bad) {
    StoreFixture at;
    { add_version(*at.open(), 1); }
    { Db::open(at.path / "db")->write({change}); }
    const auto store = at.open();
    EXPECT_TRUE(store->images().complete_versions().empty()) << change.key;
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
    store->manifests().put_manifest(2, "manifest");
  }
  fs::remove(at.path / "images/1/a.bin");
  test::write_text(at.path / "images/7/half", "x");
  at.free_bytes = 0;
  const auto store = at.open(kStoreId, "file:///moved");
  EXPECT_EQ(store->images().complete_versions(), Versions{2});
  EXPECT_EQ(store->images().chunk_hashes(2).size(), 3u);
  EXPECT_EQ(store->manifests().find_manifest(2), "manifest");
  EXPECT_FALSE(fs::exists(at.path / "images/7")) << "removing needs no room";
  EXPECT_EQ(code_of([&] { store->manifests().put_manifest(3, "x"); }), ErrorCode::no_space);
  EXPECT_EQ(code_of([&] { store->manifests().put_newest({3, {}}); }), ErrorCode::no_space);
  EXPECT_EQ(store->manifests().newest().version, 0u);

  at.free_bytes = kStorePlenty;
  store->manifests().put_manifest(3, "x");
  add_version(*store, 3);
  EXPECT_EQ(store->images().complete_versions(), (Versions{2, 3}));
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
    EXPECT_FALSE(store->images().is_complete(1));
  }
  EXPECT_FALSE(at.open()->images().is_complete(1));
}

TEST(Store, OnAFullDiskImagesCanBeRemoved) {
  StoreFixture at;
  {
    const auto store = at.open();
    add_version(*store, 1);
    at.free_bytes = 0;
    store->images().remove_images(1);
    EXPECT_FALSE(store->images().is_complete(1));
    EXPECT_FALSE(fs::exists(at.path / "images/1"));
  }
  EXPECT_TRUE(at.open()->images().complete_versions().empty());
  at.free_bytes = kStorePlenty;
  add_version(*at.open(), 1);
  EXPECT_TRUE(at.open()->images().is_complete(1));
}

// ---- default locations ----

// Locations for a user other than root: $XDG_CACHE_HOME or $HOME are below a directory of the test.
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

TEST_F(StorePlaces, TellWhichStoresAreOfEarlierRepositoriesAtTheUrl) {
  const fs::path mine = Store::default_path(kStoreId), other = Store::default_path(kOtherId);
  const std::string second = other.string() + ".2";
  Store::open(mine, kStoreId, kStoreUrl, {});
  Store::open(mine.string() + ".2", kStoreId, kStoreUrl, {});
  EXPECT_TRUE(Store::find_defaults_of_others(kStoreUrl, kStoreId).empty());
  for (const fs::path& one : {other, fs::path(second), fs::path(other.string() + ".publish")}) {
    Store::open(one, kOtherId, kStoreUrl, {});
  }
  EXPECT_EQ(Store::find_defaults_of_others(kStoreUrl, kStoreId),
            (std::vector<fs::path>{other, second}));
  EXPECT_TRUE(Store::find_defaults_of_others("file:///third", kStoreId).empty());
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
  ImagesLock lock = store->images().lock_images({});
  EXPECT_TRUE(lock);
  std::atomic<bool> is_free{false};
  std::jthread other([&] {
    const ImagesLock second = store->images().lock_images({});
    EXPECT_TRUE(is_free);
  });
  EXPECT_EQ(code_of([&] { static_cast<void>(store->images().lock_images(Context{}.within({}))); }),
            ErrorCode::timed_out);
  is_free = true;
  std::jthread([moved = std::move(lock)] {}).join();
  other.join();
  EXPECT_TRUE(store->images().lock_images({}));
}

TEST(StoreImagesLock, IsNotWaitedForByWhoIsStopped) {
  StoreFixture at;
  const auto store = at.open();
  const ImagesLock lock = store->images().lock_images({});
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  const Context context{stop.get_token(), Clock::time_point::max()};
  EXPECT_EQ(code_of([&] { static_cast<void>(store->images().lock_images(context)); }),
            ErrorCode::cancelled);
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
