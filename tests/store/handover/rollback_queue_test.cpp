// A rollback in the queue of a writer's mount: an empty directory that is published with the
// content of an older version, in its turn.
#include <gtest/gtest.h>

#include <string>

#include "tests/store/handover/publish_queue_fixture.hpp"

namespace weightfs::test {
namespace {

class RollbackQueue : public PublishQueueTest {
 protected:
  static HandOverOptions back_to(std::uint64_t version) {
    HandOverOptions options;
    options.wishes.rollback = version;
    return options;
  }
  std::uint64_t roll_back(std::uint64_t version, const std::string& name) {
    return writer().hand_over(writer().stage(name, {}), name, back_to(version));
  }
};

TEST_F(RollbackQueue, IsPublishedInItsTurn) {
  started();
  hand_over(1);
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  hand_over(3);
  const std::uint64_t order = roll_back(1, "back");
  hand_over(4);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 4u);
  EXPECT_EQ(end_of(order).how, How::published);
  EXPECT_EQ(end_of(order).left, "");
  EXPECT_EQ(manifest_of(4).tag, "back");
  EXPECT_EQ(manifest_of(4).meta.at("rollback"), "1");
  expect_version(4, checkpoint(1));
  expect_version(5, checkpoint(4));
  EXPECT_FALSE(is_staged("back") || is_queued("back"));
  EXPECT_FALSE(has_links());
}

TEST_F(RollbackQueue, IsRefusedAtOnceWhereItCannotBe) {
  started();
  hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(error_of([&] { roll_back(2, "back"); }).code(), ErrorCode::not_found);
  EXPECT_TRUE(is_staged("back"));
  const StagingId full = writer().stage("full", checkpoint(2));
  EXPECT_EQ(error_of([&] { writer().hand_over(full, "full", back_to(1)); }).code(),
            ErrorCode::invalid);
  EXPECT_TRUE(writer().queue.list().empty());
}

TEST_F(RollbackQueue, OfAnotherWritersVersionIsAConflict) {
  started();
  hand_over(1);
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  publish_elsewhere(3);
  const std::uint64_t order = roll_back(1, "back");
  ASSERT_TRUE(writer().reaches(order, State::conflict));
  EXPECT_EQ(versions_in_bucket(), 3u);
  writer().queue.rebase({});
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 4u);
  expect_version(4, checkpoint(1));
}

TEST_F(RollbackQueue, AnotherProcessGoesOn) {
  started();
  hand_over(1);
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  writer().queue.stop();
  roll_back(1, "back");
  restarted();
  ASSERT_EQ(writer().queue.list().size(), 1u);
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(manifest_of(3).meta.at("rollback"), "1");
  expect_version(3, checkpoint(1));
}

}  // namespace
}  // namespace weightfs::test
