// The pins of one mount, with this process as the loader and a catalog that the tests change.
#include "fs/loader_pins.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "store/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

using std::chrono::milliseconds;
using test::code_of;
using test::eventually;

constexpr std::uint32_t kConfigFile = 1, kFirstShard = 2, kSecondShard = 3;

class LoaderPinsTest : public testing::Test {
 protected:
  void start(PinTimes times = {}) {
    pins_.emplace(
        [this] {
          const std::lock_guard lock(mutex_);
          return catalog_;
        },
        by_hand_, times);
  }

  void show(std::uint64_t latest, const std::vector<std::uint64_t>& versions) {
    auto catalog = std::make_shared<Catalog>();
    catalog->latest = latest;
    for (const std::uint64_t number : versions) {
      auto version = std::make_shared<CatalogVersion>();
      version->number = number;
      version->entries = {{"", 0, true, 0, ImageState::complete},
                          {"config.json", 0, false, 10, ImageState::complete},
                          {"model-1.safetensors", 0, false, 10, ImageState::complete},
                          {"model-2.safetensors", 0, false, 10, ImageState::complete}};
      catalog->versions[number] = version;
    }
    const std::lock_guard lock(mutex_);
    catalog_ = catalog;
  }

  std::uint64_t link() { return pins_->link(gettid()); }
  Pins::Opened open(std::uint64_t version, std::uint32_t file) {
    return pins_->opened(gettid(), make_inode({InodeKind::version, version, file}));
  }

  test::TempDir folder_;
  std::unique_ptr<Db> db_ = Db::open(folder_ / "db", [] { return std::uint64_t{1} << 30; });
  HandPins by_hand_{*db_};
  std::mutex mutex_;
  std::shared_ptr<const Catalog> catalog_ = std::make_shared<Catalog>();
  std::optional<LoaderPins> pins_;
};

TEST_F(LoaderPinsTest, WithoutAVersionThereIsNoLatest) {
  start();
  EXPECT_EQ(link(), 0u);
}

TEST_F(LoaderPinsTest, AnOpenThroughLatestPinsAndTheVersionIsKept) {
  start();
  show(5, {4, 5});
  EXPECT_EQ(link(), 5u);
  EXPECT_NE(open(5, kFirstShard).handle, 0u);
  show(6, {4, 5, 6});
  EXPECT_EQ(link(), 5u);
  EXPECT_TRUE(pins_->keeps(5));
  EXPECT_FALSE(pins_->keeps(4));
  const auto list = pins_->list().sessions;
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].version, 5u);
  EXPECT_TRUE(list[0].is_loading) << "it has two shards";
}

TEST_F(LoaderPinsTest, AnOpenThatEndsNoWalkPinsNothing) {
  start();
  show(5, {4, 5});
  EXPECT_EQ(open(5, kFirstShard).handle, 0u);
  EXPECT_EQ(link(), 5u);
  pins_->opened(gettid(), make_inode(Fixed::status));
  EXPECT_EQ(open(5, kFirstShard).handle, 0u);
  EXPECT_EQ(link(), 5u);
  EXPECT_EQ(open(4, kFirstShard).handle, 0u);
  EXPECT_TRUE(pins_->list().sessions.empty());
}

TEST_F(LoaderPinsTest, WhoWasToldOfAVersionFindsIt) {
  start();
  show(5, {4, 5});
  EXPECT_EQ(link(), 5u);
  show(6, {4, 5, 6});
  EXPECT_TRUE(pins_->keeps(5));
  EXPECT_FALSE(pins_->keeps(4));
}

TEST_F(LoaderPinsTest, APinnedVersionThatIsGoneAllTheSameIsNotTold) {
  start();
  show(5, {5});
  link();
  open(5, kFirstShard);
  show(6, {6});
  EXPECT_EQ(link(), 6u);
  EXPECT_TRUE(pins_->list().sessions.empty());
}

TEST_F(LoaderPinsTest, TheThreadEndsThePinOfWhoHasOpenedAll) {
  start(PinTimes::of(milliseconds(30)));
  show(5, {5});
  for (const std::uint32_t file : {kConfigFile, kFirstShard, kSecondShard}) {
    EXPECT_EQ(link(), 5u);
    pins_->released(open(5, file).handle);
  }
  EXPECT_TRUE(eventually([&] { return pins_->list().sessions.empty(); }));
}

TEST_F(LoaderPinsTest, APinByHandKeepsAVersionUntilItIsEnded) {
  start();
  EXPECT_EQ(code_of([&] { pins_->pin(0); }), ErrorCode::not_found);
  show(5, {4, 5});
  EXPECT_EQ(pins_->pin(0), 5u);
  EXPECT_EQ(pins_->pin(4), 4u);
  EXPECT_EQ(code_of([&] { pins_->pin(3); }), ErrorCode::not_found);
  EXPECT_TRUE(pins_->keeps(4));
  EXPECT_FALSE(pins_->keeps(3));
  EXPECT_EQ(pins_->list().by_hand.size(), 2u);
  EXPECT_EQ(pins_->unpin({.version = 4}), 1u);
  EXPECT_FALSE(pins_->keeps(4));
  EXPECT_EQ(code_of([&] { pins_->unpin({.version = 4}); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { pins_->unpin({.session = "session 1"}); }), ErrorCode::not_found);
  link();
  open(5, kFirstShard);
  EXPECT_EQ(pins_->unpin({}), 2u);
  EXPECT_EQ(pins_->unpin({}), 0u);
}

TEST_F(LoaderPinsTest, AVersionThatIsBeingFilledIsToldPinnedAndKept) {
  start();
  show(5, {5});
  auto catalog = std::make_shared<Catalog>(*catalog_);
  catalog->incomplete[5] = {catalog->versions[5], ImageState::partial};
  catalog->incomplete[4] = {catalog->versions[5], ImageState::absent};
  catalog->versions.clear();
  {
    const std::lock_guard lock(mutex_);
    catalog_ = catalog;
  }
  EXPECT_EQ(link(), 5u);
  EXPECT_NE(open(5, kFirstShard).handle, 0u);
  EXPECT_TRUE(pins_->keeps(5));
  EXPECT_EQ(pins_->pin(0), 5u);
  EXPECT_EQ(code_of([&] { pins_->pin(4); }), ErrorCode::not_found);
}

}  // namespace
}  // namespace weightfs::fs
