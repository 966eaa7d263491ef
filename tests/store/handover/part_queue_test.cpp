// Hand-overs that are parts of a version: two writers' queues, whose parts make one version.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "store/base/error.hpp"
#include "tests/store/handover/publish_queue_fixture.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/contains.hpp"

namespace weightfs::test {
namespace {

constexpr unsigned kQueueParts = 2;

std::string part_file(unsigned part) { return "rank" + std::to_string(part) + ".safetensors"; }

class PartQueue : public PublishQueueTest {
 protected:
  /// The writer of a part, as made last.
  Writer& part_writer(unsigned part) { return *writers_.at(part); }

  /// A new process on the store of the part, begun.
  Writer& begin(unsigned part, const std::string& run = "run-1",
                std::chrono::milliseconds part_wait = std::chrono::minutes(10)) {
    writers_.erase(part);
    QueueOptions options = options_;
    options.part = {part, kQueueParts, run};
    options.part_wait = part_wait;
    options.show = [this, part](std::uint64_t version) {
      EXPECT_TRUE(part_writer(part).store->images().is_complete(version));
    };
    writers_[part] =
        std::make_unique<Writer>(open(), dir_ / ("part-" + std::to_string(part)), options);
    writers_[part]->start();
    return *writers_[part];
  }

  static Files part_of(unsigned part, unsigned step) {
    const std::string name = "layer" + std::to_string(part);
    return {{part_file(part),
             make_safetensors({tensor_of(name + ".w", Dtype::bf16, 70'000, part),
                               tensor_of(name + ".b", Dtype::f32, 16, 100 * step + part)})}};
  }

  std::uint64_t hand_part_over(unsigned part, unsigned step, Files files) {
    const std::string name = "step-" + std::to_string(step);
    Writer& own = part_writer(part);
    return own.hand_over(own.stage(name, files), name);
  }
  std::uint64_t hand_part_over(unsigned part, unsigned step) {
    return hand_part_over(part, step, part_of(part, step));
  }

  HandOverEnd end_at(unsigned part, std::uint64_t order) {
    HandOverEnd result;
    for (HandOverEnd& end : part_writer(part).queue.ended()) {
      if (end.order == order) result = std::move(end);
    }
    return result;
  }

  void expect_whole(std::uint64_t version, unsigned step) {
    Host reader(bucket_, dir_ / ("whole-" + std::to_string(version)));
    const Files found = reader.read_version(version);
    for (unsigned part = 1; part <= kQueueParts; part++) {
      EXPECT_EQ(found.at(part_file(part)), part_of(part, step).at(part_file(part))) << part;
    }
  }

  std::map<unsigned, std::unique_ptr<Writer>> writers_;
};

TEST_F(PartQueue, WaitsForTheOthersAndEndsWhoeverCommits) {
  begin(1);
  begin(2);
  std::uint64_t version = 0;
  for (const unsigned step : {10U, 20U}) {
    const std::uint64_t first = hand_part_over(1, step);
    ASSERT_TRUE(part_writer(1).reaches(first, State::waiting));
    const HandOver waiting = part_writer(1).get(first);
    EXPECT_EQ(waiting.missing, std::vector<unsigned>{2});
    EXPECT_EQ(waiting.parts, kQueueParts);
    EXPECT_EQ(waiting.error, "") << "to wait is no trouble";
    EXPECT_EQ(versions_in_bucket(), version++);
    const std::uint64_t second = hand_part_over(2, step);
    ASSERT_TRUE(part_writer(1).settles() && part_writer(2).settles());
    for (const auto& [part, order] : {std::pair{1U, first}, std::pair{2U, second}}) {
      EXPECT_EQ(end_at(part, order).how, How::published);
      EXPECT_EQ(end_at(part, order).version, version);
      EXPECT_TRUE(part_writer(part).store->images().is_complete(version));
      EXPECT_TRUE(part_writer(part).staging.list(kStagingRoot).empty());
    }
    EXPECT_EQ(manifest_of(version).tag, "step-" + std::to_string(step));
    EXPECT_EQ(manifest_of(version).delta.has_value(), step == 20U);
    expect_whole(version, step);
  }
}

TEST_F(PartQueue, CannotBeTakenBackWhileOthersMayCompleteIt) {
  Writer& own = begin(1);
  const std::uint64_t order = hand_part_over(1, 10);
  ASSERT_TRUE(own.reaches(order, State::waiting));
  const Error refused =
      error_of([&] { own.queue.take_back(own.get(order).directory, kStagingRoot, "step-10"); });
  EXPECT_EQ(refused.code(), ErrorCode::busy);
  EXPECT_TRUE(contains(refused.what(), "part 2 of 2")) << refused.what();
}

TEST_F(PartQueue, APartThatNeverComesIsNamedAndHandedOverAgainItGoesOn) {
  Writer& own = begin(1, "run-1", std::chrono::milliseconds(50));
  const std::uint64_t order = hand_part_over(1, 10);
  ASSERT_TRUE(own.reaches(order, State::failed));
  const HandOver failed = own.get(order);
  EXPECT_EQ(failed.error_code, "timed_out");
  EXPECT_TRUE(contains(failed.error, "part 2 of 2 did not come")) << failed.error;
  EXPECT_EQ(versions_in_bucket(), 0U);

  begin(2);
  const std::uint64_t other = hand_part_over(2, 10);
  ASSERT_TRUE(part_writer(2).settles());
  EXPECT_EQ(end_at(2, other).version, 1U) << "the part of the failed hand-over is in the bucket";
  own.queue.take_back(failed.directory, kStagingRoot, "step-10");
  const std::uint64_t again = own.hand_over(failed.directory, "step-10");
  ASSERT_TRUE(own.settles());
  EXPECT_EQ(end_at(1, again).how, How::published);
  EXPECT_EQ(end_at(1, again).version, 1U);
  expect_whole(1, 10);
  // Nobody else has published: the next step follows.
  const std::uint64_t other_next = hand_part_over(2, 20);
  ASSERT_TRUE(part_writer(2).reaches(other_next, State::waiting));
  const std::uint64_t next = hand_part_over(1, 20);
  ASSERT_TRUE(own.settles() && part_writer(2).settles());
  EXPECT_EQ(end_at(1, next).version, 2U) << own.get(next).error;
}

TEST_F(PartQueue, AnotherProcessGoesOnWithTheTokenOfTheHandOver) {
  const std::uint64_t order = (begin(1), hand_part_over(1, 10));
  ASSERT_TRUE(part_writer(1).reaches(order, State::waiting));
  const std::uint64_t queued = hand_part_over(1, 20);
  begin(1, "run-2");
  EXPECT_EQ(part_writer(1).get(queued).state, State::queued);
  begin(2, "run-1");
  hand_part_over(2, 10);
  hand_part_over(2, 20);
  ASSERT_TRUE(part_writer(1).settles() && part_writer(2).settles());
  EXPECT_EQ(end_at(1, order).version, 1U);
  EXPECT_EQ(end_at(1, queued).version, 2U);
  expect_whole(2, 20);
  // From now on those of the new token; of the old one nobody comes.
  begin(2, "run-2");
  const std::uint64_t next = hand_part_over(1, 30);
  hand_part_over(2, 30);
  ASSERT_TRUE(part_writer(1).settles());
  EXPECT_EQ(end_at(1, next).version, 3U);
}

TEST_F(PartQueue, AVersionThatWasCommittedMeanwhileIsFound) {
  const std::uint64_t order = (begin(1), hand_part_over(1, 10));
  ASSERT_TRUE(part_writer(1).reaches(order, State::waiting));
  part_writer(1).queue.stop();
  begin(2);
  hand_part_over(2, 10);
  ASSERT_TRUE(part_writer(2).settles());
  ASSERT_EQ(versions_in_bucket(), 1U);
  begin(1, "run-2");
  ASSERT_TRUE(part_writer(1).settles());
  EXPECT_EQ(end_at(1, order).how, How::published);
  EXPECT_EQ(end_at(1, order).version, 1U);
}

TEST_F(PartQueue, PartsThatMakeNoVersionFailAtAllHosts) {
  begin(1);
  begin(2);
  Files same = part_of(2, 10);
  same[part_file(2)] = part_of(1, 10).at(part_file(1));  // its tensors are those of part 1
  const std::uint64_t first = hand_part_over(1, 10);
  const std::uint64_t second = hand_part_over(2, 10, same);
  for (const auto& [part, order] : {std::pair{1U, first}, std::pair{2U, second}}) {
    ASSERT_TRUE(part_writer(part).reaches(order, State::failed));
    const HandOver failed = part_writer(part).get(order);
    EXPECT_EQ(failed.error_code, "invalid");
    EXPECT_TRUE(contains(failed.error, "layer1")) << failed.error;
  }
  EXPECT_EQ(versions_in_bucket(), 0U);
}

TEST_F(PartQueue, OtherBytesOfTheSameRunFailAndAreNoConflictOfWriters) {
  Writer& own = begin(1, "run-1", std::chrono::milliseconds(50));
  const std::uint64_t order = hand_part_over(1, 10);
  ASSERT_TRUE(own.reaches(order, State::failed));
  own.queue.take_back(own.get(order).directory, kStagingRoot, "old");
  const std::uint64_t other = hand_part_over(1, 10, part_of(1, 11));
  ASSERT_TRUE(own.reaches(other, State::failed));
  EXPECT_EQ(own.get(other).error_code, "conflict");
  EXPECT_TRUE(contains(own.get(other).error, "other bytes by the same run"))
      << own.get(other).error;
}

TEST_F(PartQueue, AnotherWritersVersionIsAConflictUntilARebase) {
  begin(1);
  begin(2);
  hand_part_over(1, 10);
  hand_part_over(2, 10);
  ASSERT_TRUE(part_writer(1).settles() && part_writer(2).settles());
  publish_elsewhere(3);
  const std::uint64_t order = hand_part_over(1, 20);
  ASSERT_TRUE(part_writer(1).reaches(order, State::conflict));
  EXPECT_TRUE(contains(part_writer(1).get(order).error, "weightfs rebase"));
}

TEST_F(PartQueue, WhatOnlyAnotherPartPublishesStaysInStaging) {
  begin(1);
  options_.include = {"*.bin"};
  begin(2);
  Files with_bin = part_of(1, 10), with_other_bin = part_of(2, 10);
  with_bin["state.bin"] = "mine";
  with_other_bin["state.bin"] = "yours";
  const std::uint64_t order = hand_part_over(1, 10, with_bin);
  hand_part_over(2, 10, with_other_bin);
  ASSERT_TRUE(part_writer(1).settles() && part_writer(2).settles());
  const HandOverEnd end = end_at(1, order);
  ASSERT_EQ(end.version, 1U);
  ASSERT_EQ(end.left, "step-10");
  const auto left = part_writer(1).find(kStagingRoot, "step-10");
  ASSERT_TRUE(left);
  EXPECT_EQ(part_writer(1).read(*left), (Files{{"state.bin", "mine"}}));
}

TEST_F(PartQueue, WhatOnlyAnotherPartPublishesStaysInStagingAlsoAfterAPowerCut) {
  begin(1);
  Files with_bin = part_of(1, 10), with_other_bin = part_of(2, 10);
  with_bin["state.bin"] = "mine";
  with_other_bin["state.bin"] = "yours";
  const std::uint64_t order = hand_part_over(1, 10, with_bin);
  ASSERT_TRUE(part_writer(1).reaches(order, State::waiting));
  spoil_by_power_cut(part_writer(1));
  options_.include = {"*.bin"};
  begin(2);
  hand_part_over(2, 10, with_other_bin);
  ASSERT_TRUE(part_writer(2).settles());
  options_.include = {};
  begin(1);
  ASSERT_TRUE(part_writer(1).settles());
  ASSERT_EQ(end_at(1, order).version, 1U);
  const auto left = part_writer(1).find(kStagingRoot, "step-10");
  ASSERT_TRUE(left);
  EXPECT_TRUE(part_writer(1).read(*left).contains("state.bin"));
  EXPECT_EQ(part_writer(1).read(*left).size(), 1U) << "the others are in the version";
}

TEST_F(PartQueue, RefusesWhatCannotBeAPartAtOnce) {
  Writer& own = begin(1);
  HandOverOptions rollback;
  rollback.wishes.rollback = 1;
  const Error refused = error_of([&] { own.hand_over(own.stage("back", {}), "back", rollback); });
  EXPECT_EQ(refused.code(), ErrorCode::invalid);
  EXPECT_TRUE(contains(refused.what(), "there is no part of a rollback")) << refused.what();
  const StagingId untagged = own.stage("untagged", part_of(1, 10));
  const Error no_tag = error_of([&] { own.queue.hand_over(untagged, "untagged", {}, {}); });
  EXPECT_TRUE(contains(no_tag.what(), "needs a tag")) << no_tag.what();
  EXPECT_TRUE(own.queue.list().empty());
}

TEST_F(PartQueue, NothingIsCodedBeforeTheHandOver) {
  Writer& own = begin(1);
  own.stage("step-10", part_of(1, 10));
  const EarlyStatus early = own.queue.early();
  EXPECT_EQ(early.waiting_files, 0U);
  EXPECT_EQ(early.coded_files, 0U);
}

}  // namespace
}  // namespace weightfs::test
