#include "fs/control/wait_condition.hpp"

#include <gtest/gtest.h>

#include <initializer_list>

namespace weightfs::fs {
namespace {

using How = WaitEnd::How;
using WaitState = ControlHandlers::WaitState;

/// A mount at version `latest` that has the images of `versions`.
Catalog catalog_of(std::uint64_t latest, std::initializer_list<std::uint64_t> versions) {
  Catalog catalog;
  catalog.latest = latest;
  for (const std::uint64_t number : versions) {
    catalog.versions[number] = std::make_shared<const CatalogVersion>();
  }
  return catalog;
}

HandOver queued(std::uint64_t order, const std::string& tag,
                HandOver::State state = HandOver::State::uploading) {
  HandOver one;
  one.order = order;
  one.name = one.tag = tag;
  one.state = state;
  one.error = "the reason";
  return one;
}

HandOverEnd ended(std::uint64_t order, const std::string& tag, HandOverEnd::How how,
                  std::uint64_t version = 0) {
  return {.order = order,
          .name = tag,
          .tag = tag,
          .how = how,
          .version = version,
          .error = "the reason",
          .left = ""};
}

class WaitConditionTest : public testing::Test {
 protected:
  [[nodiscard]] WaitFacts facts() const {
    return {.queue = queue_,
            .ended = ended_,
            .catalog = std::make_shared<const Catalog>(catalog_),
            .follow = follow_,
            .followed = followed_,
            .nameable = nameable_,
            .partial = partial_};
  }
  std::optional<WaitEnd> find(const WaitFor& what) {
    WaitState state;
    return find_wait_end(what, facts(), state);
  }
  std::optional<WaitEnd> find_tag(const std::string& tag) { return find({.tag = tag}); }

  void expect_not_yet(const WaitFor& what) { EXPECT_FALSE(find(what).has_value()); }
  void expect_here(const WaitFor& what, std::uint64_t version) {
    const auto end = find(what);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->how, How::here);
    EXPECT_EQ(end->version, version);
  }
  void expect_end(const WaitFor& what, How how, const std::string& words) {
    const auto end = find(what);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->how, how);
    EXPECT_NE(end->message.find(words), std::string::npos) << end->message;
  }

  Catalog catalog_ = catalog_of(7, {5, 7});
  std::vector<HandOver> queue_;
  std::vector<HandOverEnd> ended_;
  Follow follow_;
  std::uint64_t followed_ = 0;
  std::uint64_t nameable_ = 0;  // as in the directory of a sync
  std::map<std::uint64_t, PartialProgress> partial_;
};

// ---- --version ----

TEST_F(WaitConditionTest, AVersionIsHereWhenTheMountShowsIt) {
  expect_here({.version = 7}, 7);
  expect_here({.version = 5}, 5);
}

TEST_F(WaitConditionTest, AVersionAboveTheLatestIsWaitedFor) {
  expect_not_yet({.version = 8});
  catalog_ = catalog_of(0, {});
  expect_not_yet({.version = 1});
}

TEST_F(WaitConditionTest, AVersionBelowTheLatestWithoutAnImageNeverComes) {
  expect_end({.version = 6}, How::gone, "version 6 is not here: this mount is at version 7");
  expect_end({.version = 1}, How::gone, "weightfs export");
}

TEST_F(WaitConditionTest, AVersionThatWasSkippedIsGoneWhenTheLatestIsPastIt) {
  expect_not_yet({.version = 8});
  catalog_ = catalog_of(9, {7, 9});
  expect_end({.version = 8}, How::gone, "at version 9");
}

TEST_F(WaitConditionTest, AFrozenHostGetsNoOtherVersion) {
  follow_ = parse_follow("7");
  catalog_.tags = {{"step-9", 9}};
  expect_here({.version = 7}, 7);
  expect_here({.version = 5}, 5);
  expect_here({.newer_than = 6}, 7);
  expect_end({.version = 8}, How::gone, "--follow 7 keeps this host at version 7");
  expect_end({.tag = "step-9"}, How::gone, "step-9, version 9, will not arrive here");
  expect_end({.newer_than = 7}, How::gone, "a version above 7 will not arrive here");
  catalog_ = catalog_of(0, {});
  expect_not_yet({.version = 7});
  expect_not_yet({.newer_than = 6});
}

// ---- --version and --tag, where any version opens by name ----

TEST_F(WaitConditionTest, AVersionThatOpensByNameIsHere) {
  nameable_ = 9;
  catalog_.tags = {{"old", 3}};
  expect_here({.version = 6}, 6);
  expect_here({.tag = "old"}, 3);
}

// It was here, with exit code 0, and every read got EIO.
TEST_F(WaitConditionTest, AVersionThatWasFoundDamagedDoesNotOpenByName) {
  nameable_ = 9;
  partial_[6] = {.error = Error(ErrorCode::corrupt, "pack 6-0 is damaged"), .is_damaged = true};
  expect_end({.version = 6}, How::damaged, "version 6 cannot be completed: pack 6-0");
  partial_[6].error = Error(ErrorCode::not_found, "version 6 was retired");
  expect_end({.version = 6}, How::failed, "version 6 was retired");
  partial_[6].error = Error(ErrorCode::unavailable, "no network");
  expect_here({.version = 6}, 6);
}

TEST_F(WaitConditionTest, WhatComesByItselfIsWaitedForAlsoWhereItWouldOpenByName) {
  nameable_ = 9;
  expect_not_yet({.version = 8});
  expect_not_yet({.version = 10});
  catalog_ = catalog_of(9, {9});
  expect_here({.version = 8}, 8);
  expect_not_yet({.version = 10});
}

TEST_F(WaitConditionTest, WhereSomethingElseIsFollowedNewerVersionsOpenByName) {
  nameable_ = followed_ = 9;
  follow_ = parse_follow("canary");
  expect_here({.version = 8}, 8);
  expect_not_yet({.version = 9});  // it carries the tag
  follow_ = parse_follow("7");
  followed_ = 7;
  expect_here({.version = 9}, 9);
  expect_not_yet({.version = 10});
  expect_end({.newer_than = 7}, How::gone, "a version above 7 will not arrive here");
}

TEST_F(WaitConditionTest, AVersionThatIsBeingFilledIsHere) {
  catalog_ = catalog_of(1, {});
  catalog_.incomplete[1] = {std::make_shared<const CatalogVersion>(), ImageState::partial};
  expect_here({.version = 1}, 1);
  expect_here({.newer_than = 0}, 1);
}

// ---- --ready ----

TEST_F(WaitConditionTest, WhatIsCompleteIsReady) {
  expect_here({.ready = true}, 7);
  expect_here({.version = 5, .ready = true}, 5);
  nameable_ = 7;
  expect_not_yet({.version = 6, .ready = true});  // it was asked for
  catalog_ = catalog_of(0, {});
  expect_not_yet({.ready = true});
}

TEST_F(WaitConditionTest, WhatIsBeingFilledIsReadyWhenItIsComplete) {
  catalog_ = catalog_of(1, {});
  catalog_.incomplete[1] = {std::make_shared<const CatalogVersion>(), ImageState::partial};
  partial_[1];
  expect_not_yet({.ready = true});
  partial_[1].error = Error(ErrorCode::unavailable, "no network");
  expect_not_yet({.ready = true});
  catalog_ = catalog_of(1, {1});
  expect_here({.ready = true}, 1);
}

/// It was evicted between two looks: `wait DIR --version N --ready` went on until its timeout.
TEST_F(WaitConditionTest, WhatTheDirectoryOfASyncHasRemovedIsNeverReady) {
  expect_not_yet({.version = 8, .ready = true});
  expect_end({.version = 6, .ready = true}, How::gone, "weightfs export");
}

TEST_F(WaitConditionTest, WhatIsDamagedIsNeverReady) {
  catalog_ = catalog_of(1, {});
  catalog_.incomplete[1] = {std::make_shared<const CatalogVersion>(), ImageState::partial};
  partial_[1] = {.error = Error(ErrorCode::corrupt, "pack 1-0 is damaged"), .is_damaged = true};
  expect_end({.ready = true}, How::damaged, "version 1 cannot be completed: pack 1-0");
  partial_[1].error = Error(ErrorCode::not_found, "pack 1-0 is missing");
  expect_end({.version = 1, .ready = true}, How::failed, "pack 1-0 is missing");
}

// ---- --newer-than ----

TEST_F(WaitConditionTest, NewerThanIsTheLatestWhenThatIsAboveIt) {
  expect_here({.newer_than = 0}, 7);
  expect_here({.newer_than = 6}, 7);
  expect_not_yet({.newer_than = 7});
  expect_not_yet({.newer_than = 100});
}

TEST_F(WaitConditionTest, NewerThanNoneWaitsForTheFirst) {
  catalog_ = catalog_of(0, {});
  expect_not_yet({.newer_than = 0});
  catalog_ = catalog_of(1, {1});
  expect_here({.newer_than = 0}, 1);
}

// ---- --tag, of versions ----

TEST_F(WaitConditionTest, ATagThatNobodyKnowsIsWaitedFor) { expect_not_yet({.tag = "step-8"}); }

TEST_F(WaitConditionTest, ATagMeansTheNewestVersionThatCarriesIt) {
  catalog_.tags = {{"best", 7}};
  expect_here({.tag = "best"}, 7);
}

TEST_F(WaitConditionTest, ATagOfAVersionThatIsBeingFetchedIsWaitedFor) {
  catalog_.tags = {{"best", 8}};
  expect_not_yet({.tag = "best"});
}

TEST_F(WaitConditionTest, ATagOfAVersionWithoutAnImageNeverComes) {
  catalog_.tags = {{"old", 3}};
  expect_end({.tag = "old"}, How::gone, "old, version 3, is not here");
}

// ---- --tag, of hand-overs ----

TEST_F(WaitConditionTest, ATagInTheQueueMeansThatHandOverAndNoOlderVersion) {
  catalog_.tags = {{"best", 7}};
  queue_ = {queued(1, "best")};
  expect_not_yet({.tag = "best"});
}

TEST_F(WaitConditionTest, EveryStateOnTheWayIsWaitedFor) {
  for (const auto state : {HandOver::State::queued, HandOver::State::uploading,
                           HandOver::State::waiting, HandOver::State::committing}) {
    queue_ = {queued(1, "step-8", state)};
    expect_not_yet({.tag = "step-8"});
  }
}

TEST_F(WaitConditionTest, AHandOverThatFailedOrConflictsEndsTheWaitAtOnce) {
  queue_ = {queued(1, "step-8", HandOver::State::conflict)};
  expect_end({.tag = "step-8"}, How::conflict, "step-8: the reason");
  queue_ = {queued(1, "step-8", HandOver::State::failed)};
  expect_end({.tag = "step-8"}, How::failed, "step-8: the reason");
}

TEST_F(WaitConditionTest, AHandOverIsRememberedWhenItHasLeftTheQueue) {
  WaitState state;
  catalog_.tags = {{"best", 7}};
  queue_ = {queued(4, "best")};
  EXPECT_FALSE(find_wait_end({.tag = "best"}, facts(), state).has_value());
  EXPECT_EQ(state.order, 4U);
  queue_.clear();
  ended_ = {ended(4, "best", HandOverEnd::How::taken_back)};
  const auto end = find_wait_end({.tag = "best"}, facts(), state);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->how, How::taken_back);  // not version 7, which carries the tag too
}

TEST_F(WaitConditionTest, ATagThatIsHandedOverLaterIsBoundThen) {
  WaitState state;
  EXPECT_FALSE(find_wait_end({.tag = "step-8"}, facts(), state).has_value());
  EXPECT_FALSE(state.order.has_value());
  queue_ = {queued(4, "step-8")};
  EXPECT_FALSE(find_wait_end({.tag = "step-8"}, facts(), state).has_value());
  EXPECT_EQ(state.order, 4U);
}

TEST_F(WaitConditionTest, APublishedHandOverIsHereWithWhatItLeft) {
  WaitState state{.order = 4};
  ended_ = {ended(4, "step-8", HandOverEnd::How::published, 8)};
  ended_[0].left = "step-8";
  EXPECT_FALSE(find_wait_end({.tag = "step-8"}, facts(), state).has_value());  // not shown yet
  catalog_ = catalog_of(8, {7, 8});
  const auto end = find_wait_end({.tag = "step-8"}, facts(), state);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->how, How::here);
  EXPECT_EQ(end->version, 8U);
  EXPECT_EQ(end->left, "step-8");
}

TEST_F(WaitConditionTest, APublishedHandOverIsNoFailureWhenItsImagesWereRemovedAgain) {
  ended_ = {ended(4, "step-6", HandOverEnd::How::published, 6)};
  expect_here({.order = 4}, 6);
}

TEST_F(WaitConditionTest, ATagThatWasTakenOutBeforeTheWaitBeganEndsItAtOnce) {
  ended_ = {ended(4, "step-8", HandOverEnd::How::taken_back)};
  expect_end({.tag = "step-8"}, How::taken_back, "taken out of publish/");
}

TEST_F(WaitConditionTest, TheNewestEndOfATagCounts) {
  ended_ = {ended(4, "step-8", HandOverEnd::How::taken_back),
            ended(5, "other", HandOverEnd::How::taken_back),
            ended(6, "step-8", HandOverEnd::How::published, 8)};
  expect_not_yet({.tag = "step-8"});
  catalog_ = catalog_of(8, {8});
  expect_here({.tag = "step-8"}, 8);
}

/// `wait --tag best` told of version 5 though the hand-over that its caller meant was taken back.
TEST_F(WaitConditionTest, AHandOverThatEndedCountsMoreThanAnOlderVersionOfItsTag) {
  catalog_.tags = {{"best", 5}};
  ended_ = {ended(4, "best", HandOverEnd::How::taken_back)};
  ended_[0].newest = 7;
  expect_end({.tag = "best"}, How::taken_back, "taken out of publish/");
  ended_[0].newest = 5;
  expect_end({.tag = "best"}, How::taken_back, "taken out of publish/");
  ended_ = {ended(4, "best", HandOverEnd::How::published, 7)};
  ended_[0].newest = 7;
  expect_here({.tag = "best"}, 7);  // the tags are not known to be newer yet
}

TEST_F(WaitConditionTest, AVersionThatCameAfterTheEndCountsMore) {
  catalog_.tags = {{"best", 7}};
  ended_ = {ended(3, "best", HandOverEnd::How::published, 5),
            ended(4, "best", HandOverEnd::How::taken_back)};
  ended_[1].newest = 6;
  expect_here({.tag = "best"}, 7);  // from another writer
  ended_.pop_back();
  expect_here({.tag = "best"}, 7);
  ended_.clear();  // a new daemon
  expect_here({.tag = "best"}, 7);
}

/// Another writer's version was there when this one's was settled.
TEST_F(WaitConditionTest, ANewerVersionOfATagCountsMoreThanOneThatWasHandedOver) {
  catalog_.tags = {{"best", 7}};
  ended_ = {ended(4, "best", HandOverEnd::How::published, 5)};
  ended_[0].newest = 7;
  expect_here({.tag = "best"}, 7);
}

TEST_F(WaitConditionTest, AQueuedHandOverCountsMoreThanAnEndedOne) {
  ended_ = {ended(4, "step-8", HandOverEnd::How::taken_back)};
  queue_ = {queued(5, "step-8")};
  expect_not_yet({.tag = "step-8"});
}

TEST_F(WaitConditionTest, UntaggedHandOversAreNotMeantByTheirNames) {
  HandOver one = queued(4, "");
  one.name = "step-8";
  queue_ = {one};
  one.state = HandOver::State::failed;
  expect_not_yet({.tag = "step-8"});
  WaitState state;
  static_cast<void>(find_wait_end({.tag = "step-8"}, facts(), state));
  EXPECT_FALSE(state.order.has_value());
}

// ---- order ----

TEST_F(WaitConditionTest, AnOrderIsWaitedForUntilItsHandOverEnds) {
  queue_ = {queued(3, "a", HandOver::State::failed), queued(4, "b")};
  expect_not_yet({.order = 4});
  expect_end({.order = 3}, How::failed, "a: the reason");
  queue_.clear();
  ended_ = {ended(4, "b", HandOverEnd::How::conflict)};
  expect_end({.order = 4}, How::conflict, "b: the reason");
}

TEST_F(WaitConditionTest, AnOrderThatNobodyRemembersIsAFailureInWords) {
  expect_end({.order = 9}, How::failed, "the outcome of hand-over 9 is no longer known");
}

}  // namespace
}  // namespace weightfs::fs
