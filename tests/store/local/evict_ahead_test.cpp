// Evictor: what goes before the next version comes, and what does not.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "store/local/store.hpp"
#include "store/os/file.hpp"
#include "tests/store/local/store_fixture.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::add_version;
using test::keep;
using test::StoreFixture;
using test::Versions;

/// A store with versions of 1000 bytes, of which the last is `latest`.
class EvictAhead : public testing::Test {
 protected:
  void open(std::optional<std::uint64_t> limit, std::uint64_t last) {
    at_.limits.store_bytes = limit;
    store_ = at_.open();
    for (std::uint64_t version = 1; version <= last; version++) add_version(*store_, version, 1000);
    latest_ = keep(*store_, last);
  }
  [[nodiscard]] Versions complete() const { return store_->images().complete_versions(); }

  StoreFixture at_;
  std::unique_ptr<Store> store_;
  Eviction::Reservation latest_;
};

TEST_F(EvictAhead, TheOldestGoesSoThatTheNextVersionFindsItsRoom) {
  open(std::nullopt, 3);
  const Evictor::Ahead made = store_->evictor().evict_ahead(3);
  EXPECT_EQ(made.versions, 1u);
  EXPECT_EQ(made.last, 1u);
  EXPECT_FALSE(made.is_in_use);
  EXPECT_EQ(complete(), (Versions{2, 3}));
  Versions asked;
  const test::InUse use(*store_, false, &asked);
  store_->evictor().evict_for_images(1000);
  EXPECT_TRUE(asked.empty()) << "the room was there";
  EXPECT_EQ(store_->evictor().evict_ahead(3).versions, 0u);
}

TEST_F(EvictAhead, NothingGoesWhereThereIsRoom) {
  open(4000, 3);
  EXPECT_EQ(store_->evictor().evict_ahead(3).versions, 0u);
  EXPECT_EQ(complete(), (Versions{1, 2, 3}));
}

TEST_F(EvictAhead, OnlyAsManyGoAsTheNextVersionNeeds) {
  open(5500, 5);
  EXPECT_EQ(store_->evictor().evict_ahead(5).versions, 1u);
  EXPECT_EQ(complete(), (Versions{2, 3, 4, 5}));
}

// Room for two: the one before `latest` goes only when the next one is there to be made.
TEST_F(EvictAhead, LatestAndTheOneBeforeItStay) {
  open(3500, 4);
  const auto kept = keep(*store_, 1);
  EXPECT_EQ(store_->evictor().evict_ahead(4).versions, 1u) << "4000 are above the limit";
  EXPECT_EQ(complete(), (Versions{1, 3, 4}));
  EXPECT_EQ(store_->evictor().evict_ahead(4).versions, 0u) << "it would not be enough";
  EXPECT_EQ(complete(), (Versions{1, 3, 4}));
  store_->evictor().evict_for_images(1000);
  EXPECT_EQ(complete(), (Versions{1, 4}));
}

// An engine has 1 and loads it; 3 was in use when 5 came and made its room, so it stayed.
TEST_F(EvictAhead, WhatStoodAboveTheLimitBecauseItWasInUseGoesLater) {
  open(2500, 5);
  const auto loaded = keep(*store_, 1);
  {
    const File reader = File::open(store_->images().image_directory(3) / "a.bin", O_RDONLY);
    const Evictor::Ahead made = store_->evictor().evict_ahead(5);
    EXPECT_EQ(made.last, 2u);
    EXPECT_TRUE(made.is_in_use) << "so it is asked again";
    EXPECT_EQ(complete(), (Versions{1, 3, 4, 5}));
  }
  EXPECT_EQ(store_->evictor().evict_ahead(5).last, 3u);
  EXPECT_EQ(complete(), (Versions{1, 4, 5}));
}

TEST_F(EvictAhead, AVersionAboveLatestIsNotTheOneBeforeIt) {
  open(4500, 4);
  latest_ = keep(*store_, 3);  // a tag is followed, and 4 was opened by name
  EXPECT_EQ(store_->evictor().evict_ahead(3).versions, 1u);
  EXPECT_EQ(complete(), (Versions{2, 3, 4}));
}

TEST_F(EvictAhead, OfALatestThatSharesFilesOnlyTheRestCounts) {
  open(3100, 3);
  const std::filesystem::path directory = store_->images().begin_images(4);
  std::filesystem::create_hard_link(store_->images().image_directory(3) / "a.bin",
                                    directory / "a.bin");
  test::write_text(directory / "sub/b.bin", std::string(10, 'c'));
  store_->images().complete_images(4, Versions{990, 10}, {});
  latest_ = keep(*store_, 4);
  EXPECT_EQ(store_->evictor().evict_ahead(4).versions, 0u) << "3010 + 10 fit";
}

TEST_F(EvictAhead, TheFileSystemsFreeSpaceCountsToo) {
  at_.limits.free_bytes_min = 0;
  open(1u << 20, 3);
  at_.free_bytes = (64u << 20) + 1500;  // kRecordsFloorBytes
  EXPECT_EQ(store_->evictor().evict_ahead(3).versions, 0u);
  at_.free_bytes = (64u << 20) + 500;
  EXPECT_EQ(store_->evictor().evict_ahead(3).versions, 1u);
  EXPECT_EQ(complete(), (Versions{2, 3}));
}

TEST_F(EvictAhead, WhatIsInUseStaysAndIsSaid) {
  open(std::nullopt, 3);
  {
    const File reader = File::open(store_->images().image_directory(1) / "a.bin", O_RDONLY);
    const Evictor::Ahead made = store_->evictor().evict_ahead(3);
    EXPECT_EQ(made.versions, 0u);
    EXPECT_TRUE(made.is_in_use);
    EXPECT_EQ(complete(), (Versions{1, 2, 3}));
  }
  {
    const auto pinned = store_->eviction().reserve(1, Eviction::Claim::in_use, {});
    EXPECT_TRUE(store_->evictor().evict_ahead(3).is_in_use);
  }
  EXPECT_EQ(store_->evictor().evict_ahead(3).versions, 1u);
}

// A delta that is built from it, say: else the version after this one would wait for its room.
TEST_F(EvictAhead, WhatIsBuiltOnIsAskedForAgain) {
  open(std::nullopt, 3);
  {
    const auto built_on = keep(*store_, 1);
    EXPECT_TRUE(store_->evictor().evict_ahead(3).is_in_use);
  }
  EXPECT_EQ(store_->evictor().evict_ahead(3).last, 1u);
}

// Who asks may have been told of 2 before 3 became `latest`: 2 is the one before it now.
TEST_F(EvictAhead, ForAVersionThatIsLatestNoMoreNothingBetweenGoes) {
  open(std::nullopt, 3);
  EXPECT_EQ(store_->evictor().evict_ahead(2).versions, 0u);
  EXPECT_EQ(complete(), (Versions{1, 2, 3}));
}

// A delta goes in no time, and may be what an engine is about to read.
TEST_F(EvictAhead, DeltasStay) {
  open(std::nullopt, 3);
  const std::filesystem::path file = *store_->deltas().begin(step_to(3), 300);
  test::write_text(file, std::string(300, 'd'));
  store_->deltas().complete(step_to(3), file);
  EXPECT_EQ(store_->evictor().evict_ahead(3).versions, 1u);
  EXPECT_TRUE(store_->deltas().find(step_to(3)));
  EXPECT_EQ(complete(), (Versions{2, 3}));
  store_->evictor().evict_for_images(1000);
  EXPECT_FALSE(store_->deltas().find(step_to(3)));
  EXPECT_EQ(complete(), (Versions{2, 3}));
}

TEST_F(EvictAhead, WithoutAVersionBeforeItNothingGoes) {
  open(1500, 1);
  EXPECT_EQ(store_->evictor().evict_ahead(1).versions, 0u);
  EXPECT_EQ(store_->evictor().evict_ahead(7).versions, 0u);
  EXPECT_EQ(complete(), Versions{1});
}

// By default the limit has room for three versions and patches: what was recorded between two looks
// counted against the one and was not in the other.
TEST(EvictAheadBeside, PatchesThatComeMeanwhileCostNoVersion) {
  StoreFixture at;
  std::function<void()> once;
  const auto store = Store::open(at.path, test::kStoreId, test::kStoreUrl, at.limits, [&] {
    if (const auto now = std::exchange(once, nullptr)) now();
    return Space{test::kStorePlenty, 2 * test::kStorePlenty};
  });
  constexpr std::size_t kBytes = 100'000;  // more than patches have
  for (const std::uint64_t version : {1u, 2u}) add_version(*store, version, kBytes);
  const auto latest = keep(*store, 2);
  once = [&] { test::install_patches(*store, 1); };
  EXPECT_TRUE(store->evictor().has_room_for_images(kBytes, 0));
  once = [&] { test::install_patches(*store, 2); };
  store->evictor().evict_for_images(kBytes);
  EXPECT_GT(store->patches().size_bytes(), 0u);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2}));
}

// What is being removed is neither counted nor free yet.  Whoever needs that room waits for it, and
// removes nothing else.
TEST(EvictAheadBeside, AVersionThatComesMeanwhileWaitsForItsRoom) {
  constexpr std::uint64_t kFloor = 64u << 20;  // kRecordsFloorBytes
  constexpr unsigned kUnlocked = 2;            // looks at the space before it is this one's turn
  StoreFixture at;
  at.limits = {1u << 20, 0};
  std::jthread coming;
  std::atomic<unsigned> looks = 0;
  std::atomic<bool> is_removed = false;
  const std::thread::id own = std::this_thread::get_id();
  const auto store = Store::open(at.path, test::kStoreId, test::kStoreUrl, at.limits, [&] {
    if (std::this_thread::get_id() != own && ++looks > kUnlocked) {
      EXPECT_TRUE(is_removed) << "of two, who came second looks while the first is at it";
    }
    return Space{kFloor + (is_removed ? 1500 : 500), 2 * kFloor};
  });
  for (const std::uint64_t version : {1u, 2u, 3u}) add_version(*store, version, 1000);
  const auto latest = keep(*store, 3);
  test::write_text(store->images().begin_images(9) / "a.bin", std::string(1000, 'p'));
  store->images().begin_partial(
      9, 1000,
      {.nobody_reads = [] { return true; },
       .remove =
           [&] {
             store->images().end_partial(9);
             coming = std::jthread([&] { store->evictor().evict_for_images(1000); });
             EXPECT_TRUE(test::eventually([&] { return looks >= kUnlocked; }));
             store->images().remove_images(9);
             is_removed = true;
           }});
  EXPECT_EQ(store->evictor().evict_ahead(3).last, 9u);
  coming.join();
  EXPECT_GT(looks, kUnlocked);
  EXPECT_EQ(store->images().complete_versions(), (Versions{1, 2, 3}));
}

}  // namespace
}  // namespace weightfs
