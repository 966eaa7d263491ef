// Store: what leaves it when room is needed, and who still reads a version.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>
#include <utility>

#include "store/base/error.hpp"
#include "store/local/store.hpp"
#include "store/local/sync_images.hpp"
#include "store/os/lease.hpp"
#include "tests/store/local/store_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"
#include "tests/support/told_guard.hpp"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using test::add_version;
using test::code_of;
using test::InUse;
using test::keep;
using test::StoreFixture;
using test::TempDir;
using test::Versions;

// ---- room ----

TEST(Store, CountsHardLinksOnce) {
  StoreFixture at;
  const auto store = at.open();
  add_version(*store, 1, 1000);
  EXPECT_EQ(store->images().image_bytes(), 1000u);
  const fs::path directory = store->images().begin_images(2);
  fs::create_hard_link(store->images().image_directory(1) / "a.bin", directory / "a.bin");
  test::write_text(directory / "b.bin", std::string(5, 'x'));
  const Versions sizes{990, 5};
  store->images().complete_images(2, sizes, {});
  EXPECT_EQ(store->images().image_bytes(), 1005u);
  store->images().remove_images(1);
  EXPECT_EQ(store->images().image_bytes(), 995u);
}

TEST(Store, SaysHowMuchRoomIsMissing) {
  StoreFixture at;
  at.limits.free_bytes_min = 64u << 20;
  const auto store = at.open();
  at.free_bytes = 65u << 20;
  std::string message;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(8u << 20, 0, 4u << 20); }, &message),
            ErrorCode::no_space);
  EXPECT_NE(message.find("no room for 4.0 MiB more"), std::string::npos) << message;
  EXPECT_NE(message.find("3.0 MiB more needed"), std::string::npos) << message;
}

TEST(Store, FilesThatAreAddedWhileAVersionIsSyncedAreNotSynced) {
  StoreFixture at;
  const auto store = at.open();
  ImageTable& images = store->images();
  test::write_text(images.begin_images(1) / "a.bin", "a");
  images.complete_images(1, Versions{1}, {});
  bool is_added = false;
  const auto add = [&] {
    if (!std::exchange(is_added, true)) {
      test::write_text(images.image_directory(1) / "b.bin", "b");
      images.complete_images(1, Versions{1, 1}, {});
    }
    return false;
  };
  EXPECT_EQ(sync_images(images, 1, add), SyncedImages::gone);
  EXPECT_EQ(images.unsynced_versions(), Versions{1});
  EXPECT_EQ(sync_images(images, 1), SyncedImages::synced);
  EXPECT_TRUE(images.unsynced_versions().empty());
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
  EXPECT_EQ(store->images().complete_versions(), (Versions{2, 3}));
  store->evictor().evict_for_images(2500);
  EXPECT_EQ(store->images().complete_versions(), Versions{3});
}

TEST(Store, ByDefaultKeepsThreeVersions) {
  StoreFixture at;
  const auto store = at.open();
  for (std::uint64_t version = 1; version <= 6; version++) {
    store->evictor().evict_for_images(1000);
    add_version(*store, version, 1000);
  }
  EXPECT_EQ(store->images().complete_versions(), (Versions{4, 5, 6}));
}

// A partial version, and whether it is being read.
class Partial {
 public:
  Partial(Store& store, std::uint64_t version, std::size_t bytes) {
    test::write_text(store.images().begin_images(version) / "a.bin", std::string(bytes, 'p'));
    store.images().begin_partial(version, bytes,
                                 {.nobody_reads = [this] { return !is_read; },
                                  .remove =
                                      [&store, version] {
                                        store.images().remove_images(version);
                                        store.images().end_partial(version);
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
  EXPECT_TRUE(store->images().is_partial(7));
  store->evictor().evict_for_images(500);
  EXPECT_TRUE(store->images().is_partial(7)) << "it fits as it is";
  store->evictor().evict_for_images(1500);
  EXPECT_FALSE(store->images().is_partial(7));
  EXPECT_FALSE(fs::exists(store->images().image_directory(7)));
  EXPECT_TRUE(store->images().is_partial(3));
  store->evictor().evict_for_images(2500);
  EXPECT_FALSE(store->images().is_partial(3));
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}));
  std::string message;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(3600); }, &message),
            ErrorCode::no_space);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2})) << "it would not be enough";
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
  EXPECT_TRUE(store->images().is_partial(1));
  EXPECT_TRUE(store->images().is_partial(2));
  one.is_read = false;
  store->evictor().evict_for_images(1000);
  EXPECT_FALSE(store->images().is_partial(1));
  EXPECT_TRUE(store->images().is_partial(2));
}

TEST(Store, WhatIsPartialAndFollowedStaysAndCounts) {
  StoreFixture at;
  at.limits.store_bytes = 1500;
  const auto store = at.open();
  const Partial first(*store, 1, 1000);
  const auto latest = keep(*store, 1);
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(1000); }), ErrorCode::no_space);
  EXPECT_TRUE(store->images().is_partial(1));
}

TEST(Store, ByDefaultAPartialVersionIsAsGoodAMeasureAsACompleteOne) {
  StoreFixture at;
  const auto store = at.open();
  const Partial ninth(*store, 9, 1000);
  const auto first = keep(*store, 9);
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 10);
  store->evictor().evict_for_images(10);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}))
      << "three of 1000 bytes may be here";
  store->evictor().evict_for_delta(10);
  const auto delta = *store->deltas().begin(step_to(2), 10);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}));
  store->deltas().abandon(step_to(2), delta);
}

TEST(Store, WaitsForWhatIsPartial) {
  StoreFixture at;
  const auto store = at.open();
  store->images().wait_partial(1, {});
  store->images().begin_partial(1, 10, {});
  const Context soon = Context{}.within(std::chrono::milliseconds(1));
  EXPECT_EQ(code_of([&] { store->images().wait_partial(1, soon); }), ErrorCode::timed_out);
  std::stop_source stop;
  {
    std::jthread waiter([&] {
      EXPECT_EQ(code_of([&] { store->images().wait_partial(1, {stop.get_token()}); }),
                ErrorCode::cancelled);
    });
    stop.request_stop();
  }
  {
    std::string message;
    std::jthread waiter([&] {
      EXPECT_EQ(code_of([&] { store->images().wait_partial(1, {}); }, &message),
                ErrorCode::corrupt);
      EXPECT_EQ(message, "packs/1/x is damaged");
    });
    store->images().set_partial_error(1, Error(ErrorCode::corrupt, "packs/1/x is damaged"));
  }
  store->images().set_partial_error(1, std::nullopt);
  EXPECT_EQ(code_of([&] { store->images().wait_partial(1, soon); }), ErrorCode::timed_out);
  std::jthread waiter([&] { store->images().wait_partial(1, {}); });
  store->images().end_partial(1);
  waiter.join();
  EXPECT_FALSE(store->images().is_partial(1));
  store->images().end_partial(1);
  store->images().set_partial_error(1, Error(ErrorCode::io, "nobody knows it"));
  store->images().wait_partial(1, {});
}

TEST(Store, NeverTouchesWhatMustBeKept) {
  StoreFixture at;
  at.limits.store_bytes = 2500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 1000);
  const auto latest = keep(*store, 1);
  store->evictor().evict_for_images(1000);
  EXPECT_EQ(store->images().complete_versions(), Versions{1});
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
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}));
}

// All went for a demand that they could not meet, at each try.
TEST(Store, PatchesStayWhereTheyWouldNotHelpBesideAPinnedVersion) {
  StoreFixture at;
  at.limits = {1ull << 40, 1ull << 30};
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 10'000);
  test::install_patches(*store, 1);
  const auto latest = keep(*store, 2);
  const test::ToldGuard pin(store->eviction(), {.keeps = [](auto) { return true; }});
  at.free_bytes = 1ull << 30;
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(9'000); }), ErrorCode::no_space);
  EXPECT_EQ(store->patches().list().size(), 1u);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}));
  const std::uint64_t bytes = store->patches().size_bytes();
  EXPECT_EQ(code_of([&] { store->evictor().evict_for_images(bytes); }), ErrorCode::no_space)
      << "the test frees nothing";
  EXPECT_TRUE(store->patches().list().empty()) << "they may be enough";
}

TEST(Store, VersionsInUseStayAndDoNotCount) {
  StoreFixture at;
  at.limits.store_bytes = 2500;
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, 1000);
  const InUse use(*store, true);
  const auto latest = keep(*store, 2);
  store->evictor().evict_for_images(1000);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}));
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
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}));
}

TEST(Store, RemovesForFreeSpaceToo) {
  StoreFixture at;
  at.limits = {1ull << 40, 1ull << 30};
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 1000);
  at.free_bytes = (1ull << 30) + 500;
  const auto latest = keep(*store, 3);
  // What the removal will free.
  const InUse use(*store, false, nullptr, [&] { at.free_bytes += 1000; });
  store->evictor().evict_for_images(1000);
  EXPECT_EQ(store->images().complete_versions(), (Versions{2, 3}));
}

TEST(Store, WhatIsNoImageCountsAgainstFreeSpaceOnly) {
  StoreFixture at;
  at.limits = {1500, 1ull << 30};
  const auto store = at.open();
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 1000);
  const auto latest = keep(*store, 3);
  {
    const InUse use(*store, true, nullptr, [] { ADD_FAILURE() << "there is room"; });
    EXPECT_TRUE(store->evictor().has_free_bytes(1ull << 31));
    store->evictor().evict_for_free_bytes(1ull << 31);
  }
  at.free_bytes = (1ull << 30) + 500;
  EXPECT_FALSE(store->evictor().has_free_bytes(1000));
  // What the removal will free.
  const InUse use(*store, false, nullptr, [&] { at.free_bytes += 1000; });
  store->evictor().evict_for_free_bytes(1000);
  EXPECT_EQ(store->images().complete_versions(), (Versions{2, 3}));
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
  EXPECT_TRUE(store->images().is_complete(1));
}

// ---- readers of a version ----

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
  const File reader = File::open(store->images().image_directory(1) / "a.bin", O_RDONLY);
  const auto latest = keep(*store, 3);
  store->evictor().evict_for_images(1500);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 3}));
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

// A shard that never changes is one file in all versions, and an engine keeps it mapped.
TEST_F(NobodyReads, AFileThatStaysUnderAnotherNameBlocksNoEviction) {
  StoreFixture at;
  at.limits.store_bytes = 2000;
  const auto store = at.open();
  add_version(*store, 1, 1000);
  for (const std::uint64_t version : {2u, 3u}) {
    const fs::path directory = store->images().begin_images(version);
    fs::create_hard_link(store->images().image_directory(1) / "a.bin", directory / "a.bin");
    test::write_text(directory / "sub/b.bin", std::string(10, 'b'));
    store->images().complete_images(version, Versions{990, 10}, {});
  }
  const auto latest = keep(*store, 3);
  const File shared = File::open(store->images().image_directory(1) / "a.bin", O_RDONLY);
  {
    const File own = File::open(store->images().image_directory(2) / "sub/b.bin", O_RDONLY);
    store->evictor().evict_for_images(990);
    EXPECT_EQ(store->images().complete_versions(), (Versions{2, 3}));
  }
  store->evictor().evict_for_images(995);
  EXPECT_EQ(store->images().complete_versions(), Versions{3});
  EXPECT_EQ(store->images().image_bytes(), 1000u);
}

}  // namespace
}  // namespace weightfs
