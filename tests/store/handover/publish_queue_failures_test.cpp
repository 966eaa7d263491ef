// PublishQueue: a bucket that fails, unknown outcomes, and no memory.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "store/handover/handover_record.hpp"
#include "store/handover/publish_queue.hpp"
#include "store/handover/seal.hpp"
#include "tests/store/handover/publish_queue_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sync_watch.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

// ---- a failing bucket ----

TEST_F(PublishQueueTest, WaitsForABucketThatIsOutOfReach) {
  started();
  bucket_->fail_key("", ErrorCode::unavailable);
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().reaches(order, State::waiting));
  EXPECT_NE(writer().get(order).error.find("failed on demand"), std::string::npos);
  EXPECT_EQ(writer().get(order).error_code, "unavailable");
  bucket_->heal();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).how, How::published);
  expect_version(1, checkpoint(1));
}

TEST_F(PublishQueueTest, AnswersWhileTheBucketHangs) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind != "get" && call.kind != "list") gate_.pass(call.context);
  };
  gate_.close();
  started();
  hand_over(1);
  ASSERT_TRUE(gate_.is_reached());
  const std::uint64_t second = hand_over(2);
  EXPECT_EQ(writer().queue.list().size(), 2u);
  writer().queue.take_back(writer().get(second).directory, kStagingRoot, "back");
  writer().stage("more", checkpoint(3));
  writer().queue.stop();  // does not wait for the bucket
  EXPECT_EQ(versions_in_bucket(), 0u);
  EXPECT_TRUE(is_queued("step-1"));
}

TEST_F(PublishQueueTest, IsNotTroubledByALostReply) {
  started();
  bucket_->lose_reply("versions/");
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(versions_in_bucket(), 1u);
}

/// Until the bucket answers again, it is unknown whether the manifest was written.
class UnknownCommit : public PublishQueueTest, public testing::WithParamInterface<bool> {
 protected:
  UnknownCommit() {
    hooks_->before = [this](const BucketCall& call) {
      if (!is_out_) return;
      if (call.key.starts_with("versions/") && (has_put_ || !call.is_manifest_put() || !GetParam()))
        fail(call);
    };
    hooks_->after = [this](const BucketCall& call) {
      if (is_out_ && call.is_manifest_put()) fail(call);
    };
  }

  void fail(const BucketCall& call) {
    if (call.is_manifest_put()) has_put_ = true;
    if (!has_put_) return;  // no failures before the commit
    throw Error(ErrorCode::unavailable, "no answer");
  }

  std::atomic<bool> is_out_{true}, has_put_{false};
};

TEST_P(UnknownCommit, EndsWithOneVersion) {
  const bool is_written = GetParam();
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
  EXPECT_EQ(writer().get(order).state, State::committing);
  EXPECT_EQ(versions_in_bucket(), is_written ? 1u : 0u);
  const StagingId directory = writer().get(order).directory;
  EXPECT_EQ(code_of([&] { writer().queue.cancel(directory); }), ErrorCode::busy);
  EXPECT_EQ(code_of([&] { writer().queue.take_back(directory, kStagingRoot, "b"); }),
            ErrorCode::busy);
  is_out_ = false;
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(versions_in_bucket(), 1u);
  EXPECT_TRUE(writer().store->images().is_complete(1));
  expect_version(1, checkpoint(1));
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  expect_version(2, checkpoint(2));
}

TEST_P(UnknownCommit, EndsWithOneVersionInANewProcess) {
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
  restarted();
  ASSERT_EQ(writer().get(order).state, State::committing);
  EXPECT_EQ(code_of([&] { writer().queue.cancel(writer().get(order).directory); }),
            ErrorCode::busy);
  is_out_ = false;
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(versions_in_bucket(), 1u);
  EXPECT_EQ(read_tree(writer().store->images().image_directory(1)), checkpoint(1));
}

/// Another writer takes the number meanwhile: the same nonce never becomes two versions.
TEST_P(UnknownCommit, LosesTheRaceOnlyIfItWasNotWritten) {
  const bool is_written = GetParam();
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
  EXPECT_EQ(publish_elsewhere(9), is_written ? 2u : 1u);
  is_out_ = false;
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).how, is_written ? How::published : How::conflict);
  EXPECT_EQ(versions_in_bucket(), is_written ? 2u : 1u);
  EXPECT_EQ(is_queued("step-1"), !is_written);
}

INSTANTIATE_TEST_SUITE_P(PublishQueue, UnknownCommit, testing::Bool(),
                         [](const auto& param) { return param.param ? "written" : "unwritten"; });

/// A bucket whose network delays manifests: the client gives up, and the request is carried out
/// later, or never.  All other requests are answered.
class LateBucket final : public Bucket {
 public:
  struct Network {
    std::mutex mutex;  // guards the others
    bool is_slow = true;
    bool comes_when_missed = false;  // the first one is carried out after a GET did not find it
    std::vector<std::pair<std::string, std::string>> held;

    [[nodiscard]] std::size_t count() {
      const std::lock_guard lock(mutex);
      return held.size();
    }
    void heal() {
      const std::lock_guard lock(mutex);
      is_slow = false;
    }
  };

  LateBucket(std::shared_ptr<MemoryBucket> bucket, std::shared_ptr<Network> network)
      : bucket_(std::move(bucket)), network_(std::move(network)) {}

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override {
    try {
      return bucket_->get(key, offset_bytes, into, context);
    } catch (const Error&) {
      const std::lock_guard lock(network_->mutex);
      if (!network_->held.empty() && key == network_->held.front().first &&
          std::exchange(network_->comes_when_missed, false)) {
        bucket_->put_if_absent(key, network_->held.front().second, context);
      }
      throw;
    }
  }
  void put(std::string_view key, const Source& source, const Context& context) override {
    bucket_->put(key, source, context);
  }
  Put put_if_absent(std::string_view key, std::string_view bytes, const Context& context) override {
    const std::lock_guard lock(network_->mutex);
    if (network_->is_slow && key.starts_with(keys::kVersions)) {
      network_->held.emplace_back(key, bytes);
      throw Error(ErrorCode::timed_out, "no reply");
    }
    return bucket_->put_if_absent(key, bytes, context);
  }
  std::vector<ObjectInfo> list_objects(std::string_view prefix, std::string_view after,
                                       const Context& context) override {
    return bucket_->list_objects(prefix, after, context);
  }
  Time now(const Context& context) override { return bucket_->now(context); }
  void remove(std::string_view key, const Context& context) override {
    bucket_->remove(key, context);
  }
  [[nodiscard]] const std::string& url() const noexcept override { return bucket_->url(); }

 private:
  std::shared_ptr<MemoryBucket> bucket_;
  std::shared_ptr<Network> network_;
};

class LateCommit : public PublishQueueTest {
 protected:
  Writer& late() {
    if (!late_) {
      late_ = std::make_unique<Writer>(
          Repository::open(std::make_unique<LateBucket>(bucket_, network_), {}), dir_ / "late",
          options_);
      late_->start();
    }
    return *late_;
  }
  void restart() { late_.reset(); }

  /// Hands step-1 over, and waits until its manifest is in transit and the client has given up.
  std::uint64_t begin() {
    const std::uint64_t order = late().hand_over(late().stage("step-1", checkpoint(1)), "step-1");
    EXPECT_TRUE(eventually([&] { return !late().get(order).error.empty(); }));
    return order;
  }
  /// Carries out the request that was delayed first.
  void carry_out() {
    const std::lock_guard lock(network_->mutex);
    const auto& [key, bytes] = network_->held.front();
    bucket_->put_if_absent(key, bytes, {});
  }
  void expect_kept(std::uint64_t order) {
    const StagingId directory = late().get(order).directory;
    EXPECT_EQ(late().get(order).state, State::committing);
    EXPECT_EQ(code_of([&] { late().queue.take_back(directory, kStagingRoot, "back"); }),
              ErrorCode::busy);
    EXPECT_EQ(code_of([&] { late().queue.cancel(directory); }), ErrorCode::busy);
  }
  HandOverEnd late_end(std::uint64_t order) {
    HandOverEnd result;
    for (HandOverEnd& end : late().queue.ended()) {
      if (end.order == order) result = std::move(end);
    }
    return result;
  }

  std::shared_ptr<LateBucket::Network> network_ = std::make_shared<LateBucket::Network>();

 private:
  std::unique_ptr<Writer> late_;
};

/// The commit did not find it in the bucket, so it was taken back; a moment later it was a version
/// after all.
TEST_F(LateCommit, IsNotTakenBackWhileItMayStillCome) {
  const std::uint64_t order = begin();
  EXPECT_EQ(versions_in_bucket(), 0u);
  expect_kept(order);
  const std::size_t tries = network_->count();
  ASSERT_TRUE(eventually([&] { return network_->count() > tries; })) << "it must be tried again";
  ASSERT_TRUE(eventually([&] { return !late().get(order).error.empty(); }));
  expect_kept(order);
  carry_out();
  ASSERT_TRUE(late().settles());
  EXPECT_EQ(late_end(order).how, How::published);
  EXPECT_EQ(versions_in_bucket(), 1u);
  expect_version(1, checkpoint(1));
}

TEST_F(LateCommit, IsKeptByANewProcessToo) {
  begin();
  restart();
  const std::uint64_t order = late().queue.list().at(0).order;
  ASSERT_TRUE(eventually([&] { return !late().get(order).error.empty(); }));
  expect_kept(order);
  network_->heal();
  ASSERT_TRUE(late().settles());
  carry_out();
  EXPECT_EQ(versions_in_bucket(), 1u);
  expect_version(1, checkpoint(1));
}

/// Once another version has the number, the request is harmless, and the trainer gets its files
/// back.
TEST_F(LateCommit, IsTakenBackWhenItsNumberIsTaken) {
  const std::uint64_t order = begin();
  EXPECT_EQ(publish_elsewhere(9), 1u);
  ASSERT_TRUE(late().reaches(order, State::conflict));
  carry_out();
  EXPECT_NE(manifest_of(1).tag, "step-1");
  late().queue.take_back(late().get(order).directory, kStagingRoot, "back");
  EXPECT_EQ(late().read(late().find(kStagingRoot, "back").value()), checkpoint(1));
  EXPECT_EQ(versions_in_bucket(), 1u);
}

TEST_F(LateCommit, ThatComesWhileTheNextTryBeginsIsItsOwn) {
  std::atomic<bool> comes = false;
  options_.at = [&](std::string_view point) {
    if (point == "scanned" && comes.exchange(false)) carry_out();
  };
  const std::uint64_t order = begin();
  comes = true;
  ASSERT_TRUE(late().settles());
  EXPECT_FALSE(comes);
  EXPECT_EQ(late_end(order).how, How::published) << "no other writer was there";
  EXPECT_EQ(late_end(order).version, 1u);
  EXPECT_EQ(versions_in_bucket(), 1u);
  expect_version(1, checkpoint(1));
}

/// It was not there when it was looked for, and is there at the next look.
TEST_F(LateCommit, ThatComesBetweenTwoLooksIsItsOwn) {
  const std::uint64_t order = begin();
  {
    const std::lock_guard lock(network_->mutex);
    network_->comes_when_missed = true;
  }
  ASSERT_TRUE(late().settles());
  EXPECT_EQ(late_end(order).how, How::published) << "no other writer was there";
  EXPECT_EQ(versions_in_bucket(), 1u);
  expect_version(1, checkpoint(1));
}

/// A failure on the way to the next try says nothing about the previous one.
TEST_F(LateCommit, IsKeptThoughTheNextTryDoesNotGetThatFar) {
  const std::uint64_t order = begin();
  bucket_->fail_key("layouts/", ErrorCode::permission);
  bucket_->fail_key("snapshots/", ErrorCode::permission);
  ASSERT_TRUE(eventually([&] { return late().get(order).error_code == "permission"; }));
  expect_kept(order);
  bucket_->heal();
  network_->heal();
  ASSERT_TRUE(late().settles());
  EXPECT_EQ(late_end(order).how, How::published);
}

TEST_F(PublishQueueTest, PublishesNothingIntoABucketThatIsNotProven) {
  std::atomic<int> asked{0};
  std::atomic<bool> is_good{false};
  options_.prove = [&](const Context&) {
    asked++;
    if (!is_good) throw Error(ErrorCode::unavailable, "not now");
  };
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().reaches(order, State::waiting));
  EXPECT_EQ(writer().get(order).error, "not now");
  EXPECT_EQ(bucket_->calls("put"), 0u);
  is_good = true;
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).how, How::published);
  const int before = asked;
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(asked, before) << "once is enough";
}

TEST_F(PublishQueueTest, FailsWhereTheBucketMayNotBeWrittenAndRefusesTheNextAtOnce) {
  started();
  for (const char* prefix : {"snapshots/", "blobs/", "layouts/", ".probe-"}) {
    bucket_->fail_key(prefix, ErrorCode::permission);
  }
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_EQ(writer().get(order).error_code, "permission");
  EXPECT_EQ(end_of(order).how, How::failed);
  const StagingId second = writer().stage("second", checkpoint(2));
  EXPECT_EQ(code_of([&] { writer().hand_over(second, "step-2"); }), ErrorCode::permission);
  EXPECT_TRUE(is_staged("second"));

  bucket_->heal();
  writer().hand_over(second, "step-2");
  ASSERT_TRUE(writer().settles());
  EXPECT_FALSE(bucket_->find(".probe-write"));
  EXPECT_EQ(manifest_of(1).tag, "step-2");
  // The failed hand-over stays until the user takes it back.
  restarted();
  EXPECT_EQ(writer().get(order).state, State::failed);
  writer().queue.take_back(writer().get(order).directory, kStagingRoot, "again");
  EXPECT_EQ(writer().read(writer().find(kStagingRoot, "again").value()), checkpoint(1));
}

TEST_F(PublishQueueTest, SaysThatAVersionIsPublishedIfItCannotSettleIt) {
  space_ = [&] { return Space{free_, std::uint64_t{1} << 40}; };
  hooks_->after = [&](const BucketCall& call) {
    if (call.is_manifest_put()) free_ = kRecordsFloorBytes - 1;
  };
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().reaches(order, State::waiting));
  EXPECT_TRUE(
      writer().get(order).error.starts_with("version 1 is published, but could not be finished"))
      << writer().get(order).error;
  EXPECT_EQ(code_of([&] { writer().queue.cancel(writer().get(order).directory); }),
            ErrorCode::busy);
  free_ = std::uint64_t{1} << 40;
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(versions_in_bucket(), 1u);
  EXPECT_TRUE(writer().store->images().is_complete(1));
}

/// Something in the store makes the links useless, so the version comes from the bucket.
TEST_F(PublishQueueTest, SettlesWithWhatTheSyncFetchedIfTheFilesCannotBeAdopted) {
  options_.at = [&](std::string_view point) {
    if (point != "committed-recorded" || is_broken_.exchange(true)) return;
    for (const auto& tree : stdfs::directory_iterator(writer().store->path() / "handover")) {
      stdfs::remove(tree.path() / "config.json");
    }
  };
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().reaches(order, State::waiting));
  EXPECT_TRUE(writer().get(order).error.starts_with("version 1 is published"));
  materialize(*writer().store, writer().history, 1, {}, {});  // like the sync
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_FALSE(is_staged("step-1"));
}

TEST_F(LateCommit, IsAVersionBeforeTheNextOneThoughThePowerCutSpoiledItsFiles) {
  begin();
  spoil_by_power_cut(late());
  restart();
  network_->heal();
  const std::uint64_t order = late().queue.list().at(0).order;
  ASSERT_TRUE(eventually([&] { return !late().get(order).error.empty(); }));
  expect_kept(order);
  carry_out();
  const std::uint64_t next = late().hand_over(late().stage("b", checkpoint(2)), "step-2");
  ASSERT_TRUE(late().settles());
  EXPECT_EQ(late_end(order).version, 1u);
  EXPECT_EQ(late_end(next).version, 2u);
  expect_version(1, checkpoint(1));
  expect_version(2, checkpoint(2));
}

// ---- no memory to say what went wrong ----

TEST_F(PublishQueueTest, WhoLooksForEarlyWorkGoesOnWithoutMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new";
  constexpr StagingId kNoFile = 123'456;
  PublishQueue& queue = writer().queue;
  {
    const NoMemory none;
    queue.look_at(kNoFile);
  }
  EXPECT_EQ(queue.early().waiting_files, 0u);
}

TEST_F(PublishQueueTest, WhoRemovesLinksGoesOnWithoutMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new";
  const stdfs::path tree = dir_ / "links";
  stdfs::create_directory(tree);
  write_text(tree / "file", "a");
  {
    const NoMemory none;
    remove_links(tree);
  }
  EXPECT_TRUE(stdfs::exists(tree));
  remove_links(tree);
  EXPECT_FALSE(stdfs::exists(tree));
}

}  // namespace
}  // namespace weightfs::test
