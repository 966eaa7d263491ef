// PublishQueue: what a disk loses, by a power cut or by itself, and what is synced so that it is
// not lost.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <utility>

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

// ---- after a power cut ----

class AfterPowerCut : public PublishQueueTest {
 protected:
  HandOverRecord record_of(std::uint64_t order) { return find_record(writer(), order); }

  void cut_power() {
    spoil_by_power_cut(writer());
    restarted();
    started();
  }

  /// A new process in another run of the machine.
  void restart_machine() {
    writer().queue.stop();
    for (const HandOver& item : writer().queue.list()) {
      HandOverRecord record = record_of(item.order);
      if (record.unsynced_boot.empty()) continue;
      record.unsynced_boot = "another run of the machine";
      writer().store->db().write({{ColumnFamily::handovers, record.key(), record.serialize()}});
    }
    restarted();
    started();
  }

  bool is_synced(std::uint64_t order) { return record_of(order).unsynced_boot.empty(); }

  /// Tries that failed, of all hand-overs of this process.
  std::uint64_t failures() {
    std::uint64_t count = 0;
    for (const auto& [code, times] : writer().queue.published().failures) count += times;
    return count;
  }

  /// Counts in `synced_` the records of synced hand-overs whenever a manifest is about to be sent.
  void count_synced() {
    options_.at = [this](std::string_view point) {
      if (point != "committing") return;
      writer().store->db().scan(ColumnFamily::handovers, "",
                                [this](std::string_view key, std::string_view value) {
                                  const auto record = HandOverRecord::parse(key, value);
                                  if (record.unsynced_boot.empty()) synced_++;
                                });
    };
  }

  /// Files of what may be a version, as if they had never been there.
  void unlink(std::uint64_t order, const std::vector<std::string>& names) {
    const StagingId directory = writer().get(order).directory;
    writer().staging.allow_removal(directory);
    for (const std::string& name : names) writer().staging.unlink(directory, name);
  }

  /// Hands step-1 over; its manifest is sent, and arrives or not, and nobody learns of it.
  std::uint64_t hand_over_without_answer(bool arrives) {
    is_broken_ = true;
    const auto fail = [this](const BucketCall& call) {
      if (call.is_manifest_put()) is_sent_ = true;
      if (is_broken_ && is_sent_) throw Error(ErrorCode::unavailable, "no answer");
    };
    (arrives ? hooks_->after : hooks_->before) = fail;
    started();
    const std::uint64_t order = hand_over(1);
    EXPECT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
    writer().queue.stop();
    is_broken_ = false;
    return order;
  }

  /// The failed hand-over, taken back into staging.
  StagingId take_back(std::uint64_t order) {
    EXPECT_EQ(writer().get(order).state, State::failed);
    writer().queue.take_back(writer().get(order).directory, kStagingRoot, "back");
    return writer().find(kStagingRoot, "back").value();
  }

  void expect_refused(StagingId directory) {
    std::string message;
    EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-7"); }, &message), ErrorCode::io);
    EXPECT_NE(message.find("save it again"), std::string::npos) << message;
  }

  std::atomic<bool> is_sent_{false};
  std::atomic<int> synced_{0};
};

TEST_F(AfterPowerCut, WhatWasQueuedFailsAndSaysWhatToDo) {
  const std::uint64_t order = hand_over(1);
  cut_power();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  const std::string error = writer().get(order).error;
  EXPECT_NE(error.find("restarted"), std::string::npos) << error;
  EXPECT_NE(error.find("publish/step-1"), std::string::npos) << error;
  EXPECT_NE(error.find("save it again"), std::string::npos) << error;
  EXPECT_EQ(versions_in_bucket(), 0u);
  EXPECT_TRUE(is_queued("step-1")) << "what is left may be looked at";
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  expect_version(1, checkpoint(2));
}

/// Its record, which said so, is gone then.
TEST_F(AfterPowerCut, WhatWasTakenBackIsRefusedByEveryLaterProcess) {
  const std::uint64_t order = hand_over(1);
  cut_power();
  ASSERT_TRUE(writer().settles());
  expect_refused(take_back(order));
  restarted();
  started();
  const StagingId back = writer().find(kStagingRoot, "back").value();
  expect_refused(back);
  EXPECT_EQ(versions_in_bucket(), 0u);

  for (const StagedFile& file : writer().staging.list(back)) {
    if (S_ISREG(file.type)) writer().staging.change(file.id, {.size_bytes = 0});
  }
  restarted();
  started();
  for (const auto& [path, bytes] : checkpoint(2)) writer().write(back, path, bytes);
  writer().hand_over(back, "step-7");
  ASSERT_TRUE(writer().settles());
  expect_version(1, checkpoint(2));
}

/// Of it nobody knew at first whether it is a version.
TEST_F(AfterPowerCut, WhatDidNotBecomeAVersionIsRefusedWhenItWasTakenBack) {
  const std::uint64_t order = hand_over_without_answer(false);
  cut_power();
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  expect_refused(take_back(order));
  restarted();
  started();
  expect_refused(writer().find(kStagingRoot, "back").value());
  EXPECT_EQ(versions_in_bucket(), 1u);
}

/// A rebase queues again what is in conflict.
TEST_F(AfterPowerCut, WhatWasInConflictIsNotCodedAfterARebase) {
  started();
  publish_elsewhere(9);
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().reaches(order, State::conflict));
  cut_power();
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_TRUE(writer().queue.rebase({}).retried.empty());
  EXPECT_EQ(versions_in_bucket(), 1u);
}

/// Images of what is a version come from the bucket, not from the staged files.
TEST_F(AfterPowerCut, WhatIsInTheBucketIsAVersionWithTheRightBytes) {
  const std::uint64_t order = hand_over_without_answer(true);
  EXPECT_EQ(record_of(order).phase, HandOverRecord::Phase::committing);
  cut_power();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).how, How::published);
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(shown_, 1u);
  EXPECT_EQ(read_tree(writer().store->images().image_directory(1)), checkpoint(1));
  EXPECT_FALSE(is_queued("step-1"));
  EXPECT_FALSE(is_staged("step-1"));
  hand_over(2);
  ASSERT_TRUE(writer().settles());
  expect_version(2, checkpoint(2));
}

TEST_F(AfterPowerCut, ACommittedOneIsSettledFromTheBucket) {
  options_.at = [this](std::string_view point) {
    if (is_broken_ && point == "committed-recorded") throw Error(ErrorCode::io, "stopped here");
  };
  is_broken_ = true;
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
  writer().queue.stop();
  EXPECT_EQ(record_of(order).phase, HandOverRecord::Phase::committed);
  is_broken_ = false;
  cut_power();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(read_tree(writer().store->images().image_directory(1)), checkpoint(1));
}

/// What is not published goes back to staging, and a later hand-over might include it.
TEST_F(AfterPowerCut, WhatGoesBackOfAVersionIsRefused) {
  options_.at = [this](std::string_view point) {
    if (is_broken_ && point == "committed-recorded") throw Error(ErrorCode::io, "stopped here");
  };
  is_broken_ = true;
  started();
  Files files = checkpoint(1);
  files["optimizer.pt"] = "state";
  const std::uint64_t order = writer().hand_over(writer().stage("step-1", files), "step-1");
  ASSERT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
  writer().queue.stop();
  is_broken_ = false;
  cut_power();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(end_of(order).left, "step-1");
  restarted();
  started();
  const StagingId left = writer().find(kStagingRoot, "step-1").value();
  for (const auto& [path, bytes] : checkpoint(2)) writer().write(left, path, bytes);
  expect_refused(left);
}

/// Its manifest may still arrive, so it stays; and it would stay for ever if those behind it
/// waited.
TEST_F(AfterPowerCut, WhatIsNotInTheBucketFailsWhenTheNextOneHasItsNumber) {
  const std::uint64_t order = hand_over_without_answer(false);
  cut_power();
  ASSERT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
  EXPECT_EQ(writer().get(order).state, State::committing);
  EXPECT_NE(writer().get(order).error.find("under another name"), std::string::npos);
  EXPECT_EQ(code_of([&] { writer().queue.cancel(writer().get(order).directory); }),
            ErrorCode::busy);
  EXPECT_EQ(versions_in_bucket(), 0u) << "it must not be coded again";
  const std::uint64_t next = hand_over(2);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(next).version, 1u);
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_EQ(versions_in_bucket(), 1u);
  expect_version(1, checkpoint(2));
}

/// The files reached the disk long ago, and still were thrown away.
TEST_F(AfterPowerCut, WhatWaitedForTheBucketIsPublished) {
  started();
  bucket_->fail_key("", ErrorCode::unavailable);
  const std::uint64_t first = hand_over(1), second = hand_over(2);
  ASSERT_TRUE(eventually([&] { return is_synced(first) && is_synced(second); }));
  bucket_->heal();
  restart_machine();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(first).version, 1u);
  EXPECT_EQ(end_of(second).version, 2u);
  expect_version(1, checkpoint(1));
  expect_version(2, checkpoint(2));
}

TEST_F(AfterPowerCut, WhatAnEarlierProcessHandedOverIsPublishedToo) {
  const std::uint64_t first = hand_over(1), second = hand_over(2);
  restarted();
  bucket_->fail_key("", ErrorCode::unavailable);
  writer().queue.start(0);
  ASSERT_TRUE(eventually([&] { return is_synced(first) && is_synced(second); }));
  bucket_->heal();
  restart_machine();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(first).version, 1u);
  EXPECT_EQ(end_of(second).version, 2u);
}

TEST_F(AfterPowerCut, WhatWasInConflictIsPublishedAfterARebase) {
  started();
  publish_elsewhere(9);
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().reaches(order, State::conflict));
  EXPECT_TRUE(is_synced(order));
  restart_machine();
  EXPECT_EQ(writer().get(order).state, State::conflict);
  EXPECT_EQ(writer().queue.rebase({}).retried.size(), 1u);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 2u);
  expect_version(2, checkpoint(1));
}

/// When its files are synced: the kernel tells that once.
TEST_F(AfterPowerCut, WhatTheDiskDoesNotTakeOfWhatWaitsIsNotPublished) {
  started();
  bucket_->fail_key("", ErrorCode::unavailable);
  const SyncWatch watch("config.json");
  const std::uint64_t first = hand_over(1), second = hand_over(2);
  ASSERT_TRUE(writer().reaches(first, State::failed));
  ASSERT_TRUE(eventually([&] { return record_of(second).unsynced_boot == "lost"; }));
  bucket_->heal();
  ASSERT_TRUE(writer().settles());
  for (const std::uint64_t order : {first, second}) {
    EXPECT_EQ(writer().get(order).state, State::failed);
    EXPECT_NE(writer().get(order).error.find("again"), std::string::npos)
        << writer().get(order).error;
  }
  EXPECT_EQ(versions_in_bucket(), 0u);
}

/// It says nothing of what is on the disk.
TEST_F(AfterPowerCut, WantOfMemoryForASyncIsNoLoss) {
  started();
  bucket_->fail_key("", ErrorCode::unavailable);
  std::optional<SyncWatch> watch(std::in_place, "config.json", ENOMEM);
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(eventually([&] { return failures() >= 3; }));
  EXPECT_NE(writer().get(order).state, State::failed);
  EXPECT_FALSE(is_synced(order));
  watch.reset();
  ASSERT_TRUE(eventually([&] { return is_synced(order); }));
  bucket_->heal();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
}

TEST_F(AfterPowerCut, AConflictOfWhatTheDiskDoesNotTakeIsAFailure) {
  const SyncWatch watch("config.json");
  started();
  publish_elsewhere(9);
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_TRUE(writer().queue.rebase({}).retried.empty());
}

/// It came too late for the try, and too early for the conflict.
TEST_F(AfterPowerCut, ARebaseWhileAConflictIsSyncedIsNotForgotten) {
  started();
  publish_elsewhere(9);
  SyncWatch watch;
  watch.hold("/handover/");
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(watch.is_reached());
  EXPECT_TRUE(writer().queue.rebase({}).retried.empty()) << "it is not in conflict yet";
  watch.release();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 2u);
  expect_version(2, checkpoint(1));
}

TEST_F(AfterPowerCut, WhatWasSyncedWithoutRoomToRecordItIsRecordedLater) {
  space_ = [&] { return Space{free_, std::uint64_t{1} << 40}; };
  started();
  bucket_->fail_key("", ErrorCode::unavailable);
  SyncWatch watch;
  watch.hold("/handover/");
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(watch.is_reached());
  ASSERT_EQ(failures(), 1u);
  free_ = kRecordsFloorBytes - 1;
  watch.release();
  ASSERT_TRUE(eventually([&] { return failures() >= 2; }));
  EXPECT_FALSE(is_synced(order));
  free_ = std::uint64_t{1} << 40;
  EXPECT_TRUE(eventually([&] { return is_synced(order); }));
}

/// It is run again at once.
TEST_F(AfterPowerCut, ALostRaceSyncsNothing) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.is_manifest_put() && races_++ == 0) publish_elsewhere(9);
  };
  options_.rebase = true;
  count_synced();
  const std::uint64_t first = hand_over(1), second = hand_over(2);
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(first).version, 2u);
  EXPECT_EQ(end_of(second).version, 3u);
  EXPECT_EQ(synced_, 0);
}

/// It fails each time, and those behind it do not wait for it.
TEST_F(AfterPowerCut, ASearchForALostOneSyncsNothing) {
  count_synced();
  const std::uint64_t lost = hand_over_without_answer(false);
  cut_power();
  ASSERT_TRUE(eventually([&] { return !writer().get(lost).error.empty(); }));
  writer().queue.stop();
  synced_ = 0;  // it may have been tried twice before
  const std::uint64_t first = hand_over(2), second = hand_over(3);
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(first).version, 1u);
  EXPECT_EQ(end_of(second).version, 2u);
  EXPECT_EQ(writer().get(lost).state, State::failed);
  EXPECT_EQ(synced_, 0);
}

/// Its files may be written to from then on.
TEST_F(AfterPowerCut, WhatIsTakenBackWhileItIsSyncedIsStaged) {
  hand_over(1);
  const std::uint64_t second = hand_over(2), third = hand_over(3);
  restarted();  // so that links are made again to sync the files
  const HandOverRecord before = record_of(third);
  bucket_->fail_key("", ErrorCode::unavailable);
  SyncWatch watch;
  watch.hold("/handover/" + record_of(second).nonce);
  writer().queue.start(0);
  ASSERT_TRUE(watch.is_reached());
  ASSERT_EQ(failures(), 1u);

  writer().queue.take_back(before.directory, kStagingRoot, "back");
  const StagingId back = writer().find(kStagingRoot, "back").value();
  for (const StagedFile& file : writer().staging.list(back)) {
    if (S_ISREG(file.type)) writer().staging.change(file.id, {.size_bytes = 0});
  }
  watch.release();
  ASSERT_TRUE(eventually([&] { return failures() >= 2; }));
  EXPECT_FALSE(writer().staging.find_lost(back));
  EXPECT_FALSE(stdfs::exists(writer().store->path() / "handover" / before.nonce));
  EXPECT_FALSE(writer().store->db().find(ColumnFamily::handovers, before.key()));
}

/// It waited for ever, and could not be taken back.
TEST_F(AfterPowerCut, WhatAnEarlierReleaseSentWithoutAShardIsPublished) {
  const std::uint64_t order = hand_over_without_answer(false);
  unlink(order, {"model-00002-of-00002.safetensors", "model.safetensors.index.json"});
  const Files files = writer().read(writer().get(order).directory);
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  expect_version(1, files);
}

TEST_F(AfterPowerCut, WhatAnEarlierReleaseSentWithoutWeightsIsPublished) {
  publish_elsewhere(9);
  const std::uint64_t order = hand_over_without_answer(false);
  unlink(order, {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                 "model.safetensors.index.json"});
  const Files files = writer().read(writer().get(order).directory);
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 2u);
  expect_version(2, files);
}

/// Once its number is another's, it is no version, and nothing of an earlier release counts.
TEST_F(AfterPowerCut, WhatWasSentWithoutWeightsIsNotRebasedOntoOneThatHasSome) {
  options_.rebase = true;
  const std::uint64_t order = hand_over_without_answer(false);
  unlink(order, {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                 "model.safetensors.index.json"});
  // After it was looked for, and before the newest version is asked for.
  options_.prove = [this](const Context&) { publish_elsewhere(9); };
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_NE(writer().get(order).error.find("no weights"), std::string::npos)
      << writer().get(order).error;
  EXPECT_EQ(versions_in_bucket(), 1u);
}

/// It was tried again and again, and all behind it waited.
TEST_F(AfterPowerCut, ADiskThatForgotFilesWithoutARestartHoldsUpNobody) {
  const std::uint64_t order = hand_over_without_answer(false);
  for (const StagedFile& file : writer().staging.list(writer().get(order).directory)) {
    if (S_ISREG(file.type)) stdfs::resize_file(writer().staging.backing_path(file.id), 0);
  }
  restarted();
  started();
  ASSERT_TRUE(eventually([&] { return !writer().get(order).error.empty(); }));
  EXPECT_EQ(writer().get(order).state, State::committing);
  const std::uint64_t next = hand_over(2);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(next).version, 1u);
  EXPECT_EQ(writer().get(order).state, State::failed);
  expect_version(1, checkpoint(2));
}

/// Nobody has its number, so it is not what came in between: the next one waited for it for ever.
TEST_F(AfterPowerCut, WhatHasAHigherNumberIsNotWhatWonTheRace) {
  is_broken_ = true;
  hooks_->before = [this](const BucketCall& call) {
    if (is_broken_ && call.is_manifest_put()) throw Error(ErrorCode::unavailable, "no answer");
  };
  HandOverOptions rebases;
  rebases.wishes.rebase = true;
  const std::uint64_t lost = hand_over(1, rebases), next = hand_over(2);
  EXPECT_EQ(publish_elsewhere(9), 1u);
  started();
  ASSERT_TRUE(eventually([&] { return !writer().get(lost).error.empty(); }));
  EXPECT_EQ(writer().get(lost).version, 2u);
  writer().queue.stop();
  for (const StagedFile& file : writer().staging.list(writer().get(lost).directory)) {
    if (S_ISREG(file.type)) stdfs::resize_file(writer().staging.backing_path(file.id), 0);
  }
  restarted();
  started();
  ASSERT_TRUE(writer().reaches(next, State::conflict));
  EXPECT_EQ(writer().get(lost).state, State::committing);
}

// ---- what the disk did not take ----

TEST_F(PublishQueueTest, SendsTheManifestBeforeTheStagedFilesAreSynced) {
  std::atomic<bool> is_unsynced{false};
  options_.at = [&](std::string_view point) {
    if (point != "committing") return;
    writer().store->db().scan(
        ColumnFamily::handovers, "", [&](std::string_view key, std::string_view value) {
          is_unsynced = !HandOverRecord::parse(key, value).unsynced_boot.empty();
        });
  };
  started();
  hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_TRUE(is_unsynced);
  expect_version(1, checkpoint(1));
}

/// Another process may have been told, once, that the disk did not take them.
TEST_F(PublishQueueTest, SyncsTheFilesOfAnEarlierProcessBeforeItCodesThem) {
  const std::uint64_t order = hand_over(1);
  std::atomic<bool> is_synced{false};
  options_.at = [&](std::string_view point) {
    if (point != "scanned") return;
    writer().store->db().scan(ColumnFamily::handovers, "",
                              [&](std::string_view key, std::string_view value) {
                                is_synced = HandOverRecord::parse(key, value).unsynced_boot.empty();
                              });
  };
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_TRUE(is_synced);
  EXPECT_EQ(end_of(order).version, 1u);
}

/// The kernel tells that once: a second fsync finds nothing wrong, nor does whoever reads the file.
TEST_F(PublishQueueTest, WhatTheDiskDidNotTakeIsNotHandedOver) {
  const StagingId directory = writer().stage("step-1", checkpoint(1));
  const std::vector<StagedFile> files = writer().staging.list(directory);
  const auto file =
      std::ranges::find_if(files, [](const StagedFile& a) { return S_ISREG(a.type); });
  ASSERT_NE(file, files.end());
  {
    const SyncWatch watch("/staging/");
    EXPECT_THROW(writer().staging.sync_file(file->id, false), PosixError);
  }
  writer().staging.sync_file(file->id, false);
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }), ErrorCode::io);
  writer().staging.change(file->id, {.size_bytes = 0});
  EXPECT_FALSE(writer().staging.find_lost(directory)) << "it is saved again";
}

/// Block layers have many errors, and each is told as it is.
TEST_F(PublishQueueTest, WhatTheDiskDidNotTakeIsNotHandedOverWhateverTheDiskSays) {
  const StagingId directory = writer().stage("step-1", checkpoint(1));
  const std::vector<StagedFile> files = writer().staging.list(directory);
  const auto file =
      std::ranges::find_if(files, [](const StagedFile& a) { return S_ISREG(a.type); });
  ASSERT_NE(file, files.end());
  const SyncWatch watch("/staging/", ENODATA);
  EXPECT_THROW(writer().staging.sync_file(file->id, false), PosixError);
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }), ErrorCode::io);
}

/// Somebody syncs a file of the directory, and is told that the disk did not take it.
void sync_in_vain(Writer& writer, StagingId directory) {
  const std::vector<StagedFile> files = writer.staging.list(directory);
  const auto file =
      std::ranges::find_if(files, [](const StagedFile& a) { return S_ISREG(a.type); });
  ASSERT_NE(file, files.end());
  const SyncWatch watch("/staging/");
  EXPECT_THROW(writer.staging.sync_file(file->id, false), PosixError);
}

TEST_F(PublishQueueTest, WhatTheDiskDidNotTakeIsNotPublished) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") gate_.pass(call.context);
  };
  gate_.close();
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(gate_.is_reached());
  sync_in_vain(writer(), writer().get(order).directory);
  gate_.open();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_NE(writer().get(order).error.find("save it again"), std::string::npos)
      << writer().get(order).error;
  EXPECT_EQ(versions_in_bucket(), 0u);
}

/// It is asked once more before the manifest is written.
TEST_F(PublishQueueTest, WhatTheDiskDidNotTakeIsNotPublishedWhateverTheDiskSays) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") gate_.pass(call.context);
  };
  gate_.close();
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(gate_.is_reached());
  const SyncWatch watch("/handover/", EREMOTEIO);
  gate_.open();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_EQ(versions_in_bucket(), 0u);
}

TEST_F(PublishQueueTest, WhatTheDiskDidNotTakeIsNotPublishedByTheNextProcess) {
  const std::uint64_t order = hand_over(1);
  sync_in_vain(writer(), writer().get(order).directory);
  writer().queue.stop();
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") is_flaky_ = true;
  };
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_FALSE(is_flaky_) << "it was coded";
  EXPECT_EQ(versions_in_bucket(), 0u);
}

/// The bucket has the right bytes by then.
TEST_F(PublishQueueTest, WhatTheDiskDidNotTakeIsNotAdopted) {
  options_.at = [&](std::string_view point) {
    if (point != "committed-recorded") return;
    const StagingId directory = writer().queue.list().at(0).directory;
    sync_in_vain(writer(), directory);
    for (const StagedFile& file : writer().staging.list(directory)) {
      if (!file.path.ends_with(".safetensors")) continue;
      const stdfs::path path = writer().staging.backing_path(file.id);
      const std::string zeros(stdfs::file_size(path), '\0');
      write_at(File::open(path, O_WRONLY).fd(), 0, as_bytes(zeros), path);
    }
  };
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_EQ(read_tree(writer().store->images().image_directory(1)), checkpoint(1));
}

TEST_F(PublishQueueTest, WhatTheQueueFoundLostIsNotHandedOverAgain) {
  const std::uint64_t order = hand_over(1);
  restarted();
  {
    const SyncWatch watch("/handover/");
    started();
    ASSERT_TRUE(writer().reaches(order, State::failed));
  }
  const std::string error = writer().get(order).error;
  EXPECT_NE(error.find("publish/step-1/"), std::string::npos) << error;
  writer().queue.take_back(writer().get(order).directory, kStagingRoot, "back");
  const StagingId back = writer().find(kStagingRoot, "back").value();
  EXPECT_EQ(code_of([&] { writer().hand_over(back, "step-1"); }), ErrorCode::io);
  restarted();
  EXPECT_EQ(code_of([&] { writer().hand_over(back, "step-1"); }), ErrorCode::io)
      << "nor by the next process";
  EXPECT_EQ(versions_in_bucket(), 0u);
}

TEST_F(PublishQueueTest, WhatTheDiskDidNotTakeIsNotCodedEarly) {
  constexpr std::size_t kLarge = 1'200'000;  // elements: two files that are coded early
  writer().staging.note_lost(writer().stage("bad", checkpoint(1, kLarge)));
  restarted();
  started();
  writer().stage("good", checkpoint(2, kLarge));
  EarlyStatus early;
  ASSERT_TRUE(eventually([&] {
    early = writer().queue.early();
    return early.coded_files >= 2 && early.waiting_files == 0;
  }));
  EXPECT_EQ(early.coded_files, 2u);
}

}  // namespace
}  // namespace weightfs::test
