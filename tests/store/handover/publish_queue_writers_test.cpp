// PublishQueue: other writers, conflicts and rebases.
#include <gtest/gtest.h>

#include <algorithm>

#include "store/handover/handover_record.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/materialize/materialize.hpp"
#include "tests/store/handover/publish_queue_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

// ---- other writers ----

TEST_F(PublishQueueTest, IsAConflictIfAnotherWriterPublishedFirst) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.is_manifest_put() && races_++ == 0) publish_elsewhere(9);
  };
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::conflict);
  EXPECT_EQ(end_of(order).how, How::conflict);
  EXPECT_EQ(versions_in_bucket(), 1u);
  EXPECT_FALSE(has_links());
  writer().queue.take_back(writer().get(order).directory, kStagingRoot, "step-1");
  EXPECT_EQ(writer().read(writer().find(kStagingRoot, "step-1").value()), checkpoint(1));

  // A mount that has seen the other version continues from it.
  restarted();
  started();
  const std::uint64_t again =
      writer().hand_over(writer().find(kStagingRoot, "step-1").value(), "step-1");
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(again).version, 2u);
  expect_version(2, checkpoint(1));
}

/// Checkpoints that are coded early; the first is version 1.
class EarlyConflict : public PublishQueueTest {
 protected:
  void SetUp() override {
    for (unsigned version = 1; version <= 3; version++) checkpoint(version, 1'200'000);
    started();
    hand_over(1);
    ASSERT_TRUE(writer().settles());
  }

  /// Another host publishes version 2, and this one hears of it.
  void publish_and_sync() {
    EXPECT_EQ(publish_elsewhere(2), 2u);
    materialize(*writer().store, writer().history, 2, {}, {});
    writer().store->manifests().put_newest({2, writer().history.get(2, {})->manifest_sha256});
    writer().queue.parent_arrived();
  }

  void expect_conflict(StagingId save) {
    const std::uint64_t order = writer().hand_over(save, "step-3");
    ASSERT_TRUE(writer().settles());
    EXPECT_EQ(writer().get(order).state, State::conflict);
  }
};

TEST_F(EarlyConflict, NothingMoreIsCoded) {
  publish_and_sync();
  const StagingId save = writer().stage("step-3", checkpoint(3));
  ASSERT_TRUE(eventually([&] { return writer().queue.early().waiting_files == 2; }));
  expect_conflict(save);
  const EarlyStatus early = writer().queue.early();
  EXPECT_EQ(early.coded_files + early.waiting_files, 0u);
}

TEST_F(EarlyConflict, NoResultsAreKept) {
  const StagingId save = writer().stage("step-3", checkpoint(3));
  ASSERT_TRUE(eventually([&] { return writer().queue.early().coded_files == 2; }));
  const auto is_announced = [&] {
    return std::ranges::any_of(
        bucket_->objects(), [](const auto& object) { return object.first.starts_with("early/"); });
  };
  ASSERT_TRUE(eventually(is_announced));
  publish_and_sync();
  expect_conflict(save);
  EXPECT_EQ(writer().queue.early().coded_files, 0u);
  EXPECT_TRUE(eventually([&] { return !is_announced(); }));
}

TEST_F(PublishQueueTest, GoesOnFromTheNewestVersionAfterARebase) {
  options_.rebase_command = "weightfs rebase /mnt/w";
  started();
  hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(publish_elsewhere(9), 2u);
  const std::uint64_t second = hand_over(2), third = hand_over(3);
  ASSERT_TRUE(writer().settles());
  ASSERT_EQ(writer().get(second).state, State::conflict);
  ASSERT_EQ(writer().get(third).state, State::conflict);
  const std::string message = writer().get(second).error;
  EXPECT_NE(message.find("run: weightfs rebase /mnt/w "), message.npos) << message;
  // It stays in conflict until the user intervenes.
  const std::uint64_t fourth = hand_over(4);
  ASSERT_TRUE(writer().settles());
  ASSERT_EQ(writer().get(fourth).state, State::conflict);

  const PublishQueue::Rebased rebased = writer().queue.rebase({});
  EXPECT_EQ(rebased.newest, 2u);
  EXPECT_EQ(rebased.retried, (std::vector<std::string>{"step-2", "step-3", "step-4"}));
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(second).version, 3u);
  EXPECT_EQ(end_of(third).version, 4u);
  EXPECT_EQ(end_of(fourth).version, 5u);
  expect_version(3, checkpoint(2));
  const std::uint64_t fifth = hand_over(5);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(fifth).version, 6u);
  // Only once: the next foreign version is a conflict again.
  EXPECT_EQ(publish_elsewhere(8), 7u);
  const std::uint64_t sixth = hand_over(6);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(sixth).state, State::conflict);
}

/// Also for hand-overs of an earlier process; a restart keeps the effect of a rebase.
TEST_F(PublishQueueTest, ARebaseSurvivesARestart) {
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(publish_elsewhere(9), 2u);
  const std::uint64_t second = hand_over(2);
  ASSERT_TRUE(writer().settles());
  ASSERT_EQ(writer().get(second).state, State::conflict);
  EXPECT_NE(order, second);
  restarted();
  EXPECT_EQ(writer().queue.rebase({}).retried, std::vector<std::string>{"step-2"});  // not started
  restarted();
  EXPECT_EQ(writer().get(second).state, State::queued);
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(second).version, 3u);
}

TEST_F(PublishQueueTest, ARebaseCountsForWhatIsBeingPublished) {
  options_.at = [&](std::string_view point) {
    if (point != "before-commit" || races_++ > 0) return;
    publish_elsewhere(9);
    EXPECT_EQ(writer().queue.rebase({}).retried, std::vector<std::string>{});
  };
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 2u);
  expect_version(2, checkpoint(1));
}

TEST_F(PublishQueueTest, ARebaseThatCannotAskTheBucketChangesNothing) {
  started();
  hand_over(1);
  ASSERT_TRUE(writer().settles());
  publish_elsewhere(9);
  const std::uint64_t second = hand_over(2);
  ASSERT_TRUE(writer().settles());
  hooks_->before = [&](const BucketCall&) {
    throw Error(ErrorCode::unavailable, "the bucket is away");
  };
  EXPECT_EQ(code_of([&] { writer().queue.rebase({}); }), ErrorCode::unavailable);
  EXPECT_EQ(writer().get(second).state, State::conflict);
}

TEST_F(PublishQueueTest, CodesAgainOnTopOfTheWinnerIfItMayRebase) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.is_manifest_put() && races_++ == 0) publish_elsewhere(9);
  };
  started();
  HandOverOptions options;
  options.wishes.rebase = true;
  const std::uint64_t order = hand_over(1, options);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 2u);
  expect_version(2, checkpoint(1));
  // Later hand-overs follow it without a rebase.
  const std::uint64_t next = hand_over(2);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(next).version, 3u);
}

/// While it waits to code again it is in no version, so it can be taken back.
TEST_F(PublishQueueTest, TakesBackWhatLostARace) {
  hooks_->before = [&](const BucketCall& call) {
    if (races_ > 0 && call.kind == "put") gate_.pass(call.context);
    if (call.is_manifest_put() && races_++ == 0) publish_elsewhere(9);
  };
  gate_.close();
  options_.rebase = true;
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(gate_.is_reached());
  writer().queue.take_back(writer().get(order).directory, kStagingRoot, "back");
  gate_.open();
  EXPECT_EQ(versions_in_bucket(), 1u);
  EXPECT_TRUE(is_staged("back"));
}

TEST_F(PublishQueueTest, GoesOnWithItsQueueAfterARestartIfNobodyElsePublished) {
  started();
  hand_over(1);
  ASSERT_TRUE(writer().settles());
  writer().queue.stop();
  const std::uint64_t second = hand_over(2), third = hand_over(3);
  restarted();
  ASSERT_EQ(writer().queue.list().size(), 2u);
  EXPECT_EQ(queued_names(writer().store->db()), (std::vector<std::string>{"step-2", "step-3"}));
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(second).version, 2u);
  EXPECT_EQ(end_of(third).version, 3u);
  expect_version(3, checkpoint(3));
}

TEST_F(PublishQueueTest, IsAConflictAfterARestartIfAnotherWriterPublishedMeanwhile) {
  started();
  hand_over(1);
  ASSERT_TRUE(writer().settles());
  writer().queue.stop();
  const std::uint64_t second = hand_over(2), third = hand_over(3);
  HandOverOptions options;
  options.wishes.rebase = true;
  const std::uint64_t rebases = hand_over(4, options), behind = hand_over(5);
  EXPECT_EQ(publish_elsewhere(9), 2u);
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(second).state, State::conflict);
  EXPECT_EQ(writer().get(third).state, State::conflict);
  EXPECT_EQ(end_of(rebases).version, 3u);
  EXPECT_EQ(writer().get(behind).state, State::conflict);
  // Conflicts survive another restart, and later hand-overs then follow the newest version.
  restarted();
  EXPECT_EQ(writer().get(second).state, State::conflict);
  EXPECT_FALSE(writer().get(second).error.empty());
  started();
  const std::uint64_t later = hand_over(6);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(later).version, 4u);
  writer().queue.cancel(writer().get(second).directory);
  EXPECT_EQ(writer().get(second).order, 0u);
}

TEST_F(PublishQueueTest, FollowsItsOwnVersionsOverManyRestarts) {
  for (unsigned v = 1; v <= 4; v++) {
    restarted();
    hand_over(2 * v - 1);
    started();
    const std::uint64_t order = hand_over(2 * v);
    ASSERT_TRUE(writer().settles());
    EXPECT_EQ(end_of(order).version, 2 * v);
  }
}

TEST_F(PublishQueueTest, GoesOnBesideRecordsThatItCannotUse) {
  HandOverRecord gone;
  gone.order = 1'000;
  gone.directory = 999'999;
  gone.name = "gone";
  gone.nonce = std::string(32, '0');
  HandOverRecord unreadable = gone;
  unreadable.order = 1'001;
  writer().store->db().write({{ColumnFamily::handovers, gone.key(), gone.serialize()},
                              {ColumnFamily::handovers, unreadable.key(), "{}"}});
  restarted();
  EXPECT_TRUE(writer().queue.list().empty());
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
}

}  // namespace
}  // namespace weightfs::test
