// RoomAhead: a version that is shown and on the disk makes room for the next.
#include "store/sync/room_ahead.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/store/sync/sync_fixture.hpp"
#include "tests/support/eventually.hpp"

namespace weightfs::test {
namespace {

using Outcome = RoomAhead::Outcome;
using Numbers = std::set<std::uint64_t>;

class RoomAheadTest : public SyncTest {
 protected:
  /// A host with versions 1 to 3, none of which is on the disk yet.
  void SetUp() override {
    on_ = reader();
    for (unsigned version = 1; version <= 3; version++) bring(version);
    ahead_.emplace(*on_->host.store);
  }
  void TearDown() override { ahead_.reset(); }
  void bring(unsigned version) {
    publish(version);
    on_->sync.run_once({});
  }
  [[nodiscard]] Numbers versions() const { return on_->versions(); }

  std::unique_ptr<Reader> on_;
  std::optional<RoomAhead> ahead_;
};

TEST_F(RoomAheadTest, NothingGoesBeforeTheNewVersionIsOnTheDisk) {
  ahead_->note_shown(3);
  EXPECT_EQ(ahead_->make_if_due(), Outcome::not_due);
  EXPECT_EQ(versions(), (Numbers{1, 2, 3}));
  on_->sync.sync_images();
  EXPECT_EQ(ahead_->make_if_due(), Outcome::done);
  EXPECT_EQ(versions(), (Numbers{2, 3}));
  EXPECT_EQ(ahead_->status().versions, 1u);
  EXPECT_EQ(ahead_->status().last, 1u);
  EXPECT_GT(ahead_->status().last_took.count(), 0);
  EXPECT_EQ(ahead_->make_if_due(), Outcome::not_due) << "once a version";
  expect_latest(*on_, 3);
}

TEST_F(RoomAheadTest, WhatIsReadStaysAndIsAskedForAgain) {
  on_->sync.sync_images();
  ahead_->note_shown(3);
  {
    const File open = File::open(
        on_->host.store->images().image_directory(1) / "model-00001-of-00002.safetensors",
        O_RDONLY);
    EXPECT_EQ(ahead_->make_if_due(), Outcome::in_use);
    EXPECT_EQ(versions(), (Numbers{1, 2, 3}));
  }
  EXPECT_EQ(ahead_->make_if_due(), Outcome::done);
  EXPECT_EQ(versions(), (Numbers{2, 3}));
}

TEST_F(RoomAheadTest, AVersionThatIsBeingBroughtMakesItsOwnRoom) {
  on_->sync.sync_images();
  ahead_->note_shown(3);
  ahead_->note_coming();
  EXPECT_EQ(ahead_->make_if_due(), Outcome::not_due);
  EXPECT_EQ(versions(), (Numbers{1, 2, 3}));
}

TEST_F(RoomAheadTest, TheThreadAsksAgainUntilItIsNotRead) {
  on_->sync.sync_images();
  {
    const File open = File::open(
        on_->host.store->images().image_directory(1) / "model-00001-of-00002.safetensors",
        O_RDONLY);
    ASSERT_EQ((ahead_->note_shown(3), ahead_->make_if_due()), Outcome::in_use);
    ahead_->start();
  }
  EXPECT_TRUE(eventually([&] { return ahead_->status().last == 1; }));
  EXPECT_EQ(versions(), (Numbers{2, 3}));
}

// What a mount does: between two versions two are here, and the next one finds its room.
TEST_F(SyncTest, MakesRoomForTheNextVersionAfterTheFlip) {
  const auto on = reader("reader", kNoFloor, often());
  on->sync.start();
  for (unsigned version = 1; version <= 5; version++) {
    publish(version);
    ASSERT_TRUE(eventually([&] { return on->sync.status().latest == version; }));
    expect_latest(*on, version);
    const std::uint64_t gone = version - std::min(version, 2u);
    EXPECT_TRUE(eventually([&] { return on->sync.status().room_ahead->last == gone; }));
    EXPECT_EQ(on->versions().size(), std::min(version, 2u));
  }
  EXPECT_EQ(on->sync.status().room_ahead->versions, 3u) << "each of them ahead";
}

TEST_F(SyncTest, MakesNoRoomWhereNothingNewerComes) {
  SyncOptions options = often();
  options.follow.what = parse_follow("1");
  const auto on = reader("reader", kNoFloor, std::move(options));
  EXPECT_FALSE(on->sync.status().room_ahead);
}

}  // namespace
}  // namespace weightfs::test
