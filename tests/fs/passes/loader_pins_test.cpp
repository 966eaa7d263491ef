// The pins of one mount, with this process as the loader and a catalog that the tests change.
#include "fs/passes/loader_pins.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/support.hpp"

namespace weightfs::fs {
namespace {

namespace stdfs = std::filesystem;
using std::chrono::milliseconds;
using test::code_of;
using test::eventually;

constexpr std::uint32_t kConfigFile = 1, kFirstShard = 2, kSecondShard = 3;

class LoaderPinsTest : public testing::Test {
 protected:
  void start(PassTimes times = {}) {
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

  std::uint64_t link(Inode inode = make_inode(Fixed::latest)) {
    return pins_->link({gettid(), 0}, inode).value_or(0);
  }
  Passes::Opened open(std::uint64_t version, std::uint32_t file) {
    return pins_->opened({gettid(), 0}, make_inode({InodeKind::version, version, file}));
  }

  test::TempDir folder_;
  std::unique_ptr<Db> db_ = Db::open(folder_ / "db", [] { return std::uint64_t{1} << 30; });
  ManualPins by_hand_{*db_};
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
  EXPECT_NE(open(5, kFirstShard).hold.pass, 0u);
  show(6, {4, 5, 6});
  EXPECT_EQ(link(), 5u);
  EXPECT_TRUE(pins_->keeps(5));
  EXPECT_FALSE(pins_->keeps(4));
  const auto list = pins_->list().passes;
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].version, 5u);
  EXPECT_TRUE(list[0].is_loading) << "it has two shards";
}

TEST_F(LoaderPinsTest, AnOpenThatEndsNoWalkPinsNothing) {
  start();
  show(5, {4, 5});
  EXPECT_EQ(open(5, kFirstShard).hold.pass, 0u);
  EXPECT_EQ(link(), 5u);
  pins_->opened({gettid(), 0}, make_inode(Fixed::status));
  EXPECT_EQ(open(5, kFirstShard).hold.pass, 0u);
  EXPECT_EQ(link(), 5u);
  EXPECT_EQ(open(4, kFirstShard).hold.pass, 0u);
  EXPECT_TRUE(pins_->list().passes.empty());
}

TEST_F(LoaderPinsTest, WhoWasToldOfAVersionFindsIt) {
  start();
  show(5, {4, 5});
  EXPECT_EQ(link(), 5u);
  show(6, {4, 5, 6});
  EXPECT_TRUE(pins_->keeps(5));
  EXPECT_FALSE(pins_->keeps(4));
}

TEST_F(LoaderPinsTest, ATagIsASymlinkOfItsOwn) {
  start();
  show(5, {4, 5, 6});
  const auto tag_best = [&](std::uint64_t version) {
    auto catalog = std::make_shared<Catalog>(*catalog_);
    catalog->tags["best"] = version;
    const std::lock_guard lock(mutex_);
    catalog_ = catalog;
    return make_inode({InodeKind::tag, version, 0});
  };
  EXPECT_EQ(link(tag_best(4)), 4u);
  open(4, kFirstShard);
  EXPECT_EQ(link(tag_best(6)), 4u);
  EXPECT_EQ(link(), 5u);
  EXPECT_EQ(pins_->list().passes.at(0).link, "tags/best");
  EXPECT_EQ(link(make_inode({InodeKind::tag, 5, 0})), 0u) << "no tag of ours";
  EXPECT_EQ(link(make_inode(Fixed::status)), 0u);
}

TEST_F(LoaderPinsTest, APinnedVersionThatIsGoneAllTheSameIsNotTold) {
  start();
  show(5, {5});
  link();
  open(5, kFirstShard);
  show(6, {6});
  EXPECT_EQ(link(), 6u);
  EXPECT_TRUE(pins_->list().passes.empty());
}

TEST_F(LoaderPinsTest, TheThreadEndsThePassOfWhoHasOpenedAll) {
  start(PassTimes::of(milliseconds(30)));
  show(5, {5});
  for (const std::uint32_t file : {kConfigFile, kFirstShard, kSecondShard}) {
    EXPECT_EQ(link(), 5u);
    pins_->released(pins_->hold(open(5, file).hold));
  }
  EXPECT_TRUE(eventually([&] { return pins_->list().passes.empty(); }));
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
  EXPECT_NE(open(5, kFirstShard).hold.pass, 0u);
  EXPECT_TRUE(pins_->keeps(5));
  EXPECT_EQ(pins_->pin(0), 5u);
  EXPECT_EQ(code_of([&] { pins_->pin(4); }), ErrorCode::not_found);
}

// The thread that answered the READLINK looked for another version without an end.
TEST_F(LoaderPinsTest, LatestThatHasLostItsImagesIsToldAllTheSame) {
  start();
  show(5, {4, 5});
  auto catalog = std::make_shared<Catalog>(*catalog_);
  catalog->incomplete[5] = {catalog->versions[5], ImageState::absent};
  catalog->versions.erase(5);
  {
    const std::lock_guard lock(mutex_);
    catalog_ = catalog;
  }
  EXPECT_EQ(link(), 5u);
}

/// Calls `body` again and again.  What is waited for is time itself: that nothing happens in it.
/// Ends early where the machine is too slow to tell, by `pause_max` from one call to the next.
template <typename Body>
void for_a_while(Clock::duration duration, Clock::duration pause_max, const Body& body) {
  const auto begin = Clock::now();
  for (auto last = begin; last - begin < duration; last = Clock::now()) {
    std::this_thread::sleep_for(milliseconds(2));
    if (Clock::now() - last > pause_max) return;
    body();
  }
}

/// A version whose images are files of the test.
class BoundLoaderPinsTest : public LoaderPinsTest {
 protected:
  void show_with_images(std::uint64_t latest, const std::vector<std::uint64_t>& versions) {
    show(latest, versions);
    for (const std::uint64_t number : versions) {
      CatalogVersion version = *catalog_->versions.at(number);
      version.directory = folder_ / ("images/" + std::to_string(number));
      test::write_text(version.directory / "model-1.safetensors", "one");
      test::write_text(version.directory / "config.json", "{}");
      auto catalog = std::make_shared<Catalog>(*catalog_);
      catalog->versions[number] = std::make_shared<const CatalogVersion>(version);
      const std::lock_guard lock(mutex_);
      catalog_ = catalog;
    }
  }
  [[nodiscard]] stdfs::path image(const char* name) const { return folder_ / "images/5" / name; }
};

TEST_F(BoundLoaderPinsTest, ReadlinkPinsAndAnOpenProlongsIt) {
  start(PassTimes::of(milliseconds(400)));
  show_with_images(5, {5});
  pins_->set_bind_mode();
  pins_->bound(*catalog_->versions.at(5));
  EXPECT_EQ(link(), 5u);
  show_with_images(6, {5, 6});
  EXPECT_TRUE(pins_->keeps(5));
  for_a_while(milliseconds(1000), milliseconds(150), [&] {
    EXPECT_EQ(link(), 5u);
    test::read_text(image("model-1.safetensors"));
  });
  EXPECT_TRUE(eventually([&] { return link() == 6; })) << "nothing is opened any more";
}

TEST_F(BoundLoaderPinsTest, WhatIsNoWeightsFileProlongsNothing) {
  start(PassTimes::of(milliseconds(50)));
  show_with_images(5, {5});
  pins_->set_bind_mode();
  pins_->bound(*catalog_->versions.at(5));
  EXPECT_EQ(link(), 5u);
  show_with_images(6, {5, 6});
  EXPECT_TRUE(eventually([&] {
    test::read_text(image("config.json"));
    return link() == 6;
  }));
}

TEST_F(BoundLoaderPinsTest, WhatIsOpenHoldsIt) {
  start(PassTimes::of(milliseconds(500)));
  show_with_images(5, {5});
  pins_->set_bind_mode();  // not watched: nobody sees the OPEN
  EXPECT_EQ(link(), 5u);
  std::optional<std::ifstream> held(image("model-1.safetensors"));
  show_with_images(6, {5, 6});
  for_a_while(milliseconds(1500), milliseconds(50), [&] { EXPECT_TRUE(pins_->keeps(5)); });
  held.reset();
  EXPECT_TRUE(eventually([&] { return link() == 6; }));
}

TEST(ImageWatch, TellsWhichVersionsWeightsAreOpened) {
  const test::TempDir folder;
  const auto make = [&](std::uint64_t number) {
    CatalogVersion version;
    version.number = number;
    version.directory = folder / std::to_string(number);
    version.entries = {{"", 0, true, 0, ImageState::complete},
                       {"sub", 0, true, 0, ImageState::complete}};
    for (const char* name : {"a.safetensors", "config.json", "sub/b.safetensors"}) {
      test::write_text(version.directory / name, "x");
    }
    return version;
  };
  const CatalogVersion one = make(1), two = make(2);
  ImageWatch watch;
  watch.add(one);
  watch.add(two);
  using Opens = std::set<ImageWatch::Opened>;
  test::read_text(one.directory / "config.json");
  EXPECT_EQ(watch.take_opened(), Opens{});
  test::read_text(one.directory / "a.safetensors");
  test::read_text(two.directory / "sub/b.safetensors");
  EXPECT_EQ(watch.take_opened(), (Opens{{1, "a.safetensors"}, {2, "sub/b.safetensors"}}));
  EXPECT_EQ(watch.take_opened(), Opens{});
  watch.remove(1);
  watch.add(two);
  test::read_text(one.directory / "a.safetensors");
  test::read_text(two.directory / "a.safetensors");
  EXPECT_EQ(watch.take_opened(), (Opens{{2, "a.safetensors"}}));
  CatalogVersion absent = one;
  absent.directory = folder / "absent";
  EXPECT_EQ(code_of([&] { watch.add(absent); }), ErrorCode::not_found);
}

}  // namespace
}  // namespace weightfs::fs
