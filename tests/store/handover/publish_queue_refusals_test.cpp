// PublishQueue: hand-overs that are refused.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

#include "store/handover/publish_queue.hpp"
#include "store/handover/seal.hpp"
#include "tests/store/handover/publish_queue_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/few_descriptors.hpp"
#include "tests/support/no_leases.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

// ---- refusals ----

struct Refusal {
  std::string name;
  Files files;
  ErrorCode code;
  std::string says;
};

class Refused : public PublishQueueTest, public testing::WithParamInterface<Refusal> {};

TEST_P(Refused, LeavesEverythingAsItWasAndSaysWhy) {
  const Refusal& refusal = GetParam();
  const StagingId directory = started().stage("run", refusal.files);
  std::string message;
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }, &message), refusal.code);
  EXPECT_NE(message.find(refusal.says), message.npos) << message;
  EXPECT_EQ(message.find(dir_.path().string()), message.npos) << message;
  EXPECT_TRUE(is_staged("run"));
  EXPECT_FALSE(is_queued("step-1"));
  EXPECT_FALSE(has_links());
  EXPECT_TRUE(writer().queue.list().empty());
  EXPECT_TRUE(queued_names(writer().store->db()).empty());
  EXPECT_EQ(writer().read(directory), refusal.files);
  const std::string last = writer().queue.last_error();
  EXPECT_NE(last.find("publish/step-1: " + message), last.npos) << last;
  // It is no longer sealed.
  writer().write(directory, "config.json", "{}");
}

std::vector<Refusal> refusals() {
  const std::string shard = make_safetensors({{"a", Dtype::f32, {2}, Bytes(8)}});
  return {
      {"AnEmptyDirectory", {}, ErrorCode::invalid, "staging/run is empty"},
      {"OnlyHiddenFiles", {{".x", "x"}, {".y/z.json", "z"}}, ErrorCode::invalid, "staging/run is"},
      {"NothingThatIsPublished",
       {{"optimizer.pt", "x"}},
       ErrorCode::invalid,
       "staging/run contains nothing that is published by default"},
      {"ABrokenHeader",
       {{"sub/m.safetensors", "12345678 no header"}},
       ErrorCode::corrupt,
       "staging/run/sub/m.safetensors"},
      {"ATruncatedShard",
       {{"m.safetensors", shard.substr(0, shard.size() - 1)}},
       ErrorCode::corrupt,
       "staging/run/m.safetensors"},
      {"AMissingShard",
       {{"m.safetensors.index.json", R"({"weight_map":{"a":"m-1.safetensors"}})"}},
       ErrorCode::not_found,
       "staging/run/m.safetensors.index.json"},
      {"WhatAKilledSaverLeft",
       {{"m-00001-of-00003.safetensors", shard}, {"m-00002-of-00003.safetensors", shard}},
       ErrorCode::not_found,
       "m-00003-of-00003.safetensors is missing: staging/run has m-00001"},
      {"ABadName", {{"bad\nname.json", "{}"}}, ErrorCode::invalid, "staging/run/bad\\x0aname.json"},
  };
}

INSTANTIATE_TEST_SUITE_P(PublishQueue, Refused, testing::ValuesIn(refusals()),
                         [](const auto& param) { return param.param.name; });

TEST_F(PublishQueueTest, RefusesSymlinksByName) {
  const StagingId directory = started().stage("run", checkpoint(1));
  writer().staging.make_symlink(directory, "link.json", "config.json", {});
  std::string message;
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }, &message),
            ErrorCode::invalid);
  EXPECT_NE(message.find("staging/run/link.json is a symlink"), message.npos) << message;
  EXPECT_FALSE(has_links());
}

TEST_F(PublishQueueTest, RefusesNamesTagsAndWhatIsNoStagedDirectory) {
  const StagingId directory = started().stage("run", checkpoint(1));
  const auto refused = [&](StagingId id, std::string_view name, std::string_view tag,
                           HandOverOptions options = {}) {
    options.wishes.tag = tag;
    return code_of([&] { writer().queue.hand_over(id, name, options, {}); });
  };
  EXPECT_EQ(refused(directory, ".hidden", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(directory, "", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(directory, "ok", "a/b"), ErrorCode::invalid);
  EXPECT_EQ(refused(kStagingRoot, "ok", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(kPublishRoot, "ok", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(writer().find(directory, "config.json").value(), "ok", ""), ErrorCode::invalid);
  HandOverOptions options;
  options.wishes.meta = {{"a", "\xff"}};
  EXPECT_EQ(refused(directory, "ok", "", options), ErrorCode::invalid);
  options.wishes.meta = {{"weightfs.early_bytes", "7"}};
  EXPECT_EQ(refused(directory, "ok", "", options), ErrorCode::invalid);
  options = {};
  options.wishes.include = {"\xff"};
  EXPECT_EQ(refused(directory, "ok", "", options), ErrorCode::invalid);
  EXPECT_TRUE(is_staged("run"));
}

TEST_F(PublishQueueTest, RefusesANameThatIsOnItsWay) {
  hand_over(1);
  const StagingId directory = writer().stage("again", checkpoint(1));
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }), ErrorCode::busy);
  EXPECT_TRUE(is_staged("again"));
}

/// The reason was only "Device or resource busy".
TEST_F(PublishQueueTest, RefusesTheNameOfWhatIsLeftOfAHandOverAndSaysWhatToDo) {
  const StagingId again = writer().stage("again", checkpoint(2));
  const auto refused = [&] {
    std::string message;
    EXPECT_EQ(code_of([&] { writer().hand_over(again, "step-1"); }, &message), ErrorCode::busy);
    EXPECT_NE(message.find("publish/step-1 is what is left of a hand-over"), message.npos)
        << message;
    EXPECT_NE(message.find("move it back to staging/ or remove it"), message.npos) << message;
    const std::string last = writer().queue.last_error();
    EXPECT_NE(last.find(message), last.npos) << last;
    EXPECT_TRUE(is_staged("again"));
  };
  const StagingId directory = writer().stage("run", checkpoint(1));
  writer().hand_over(directory, "step-1");
  writer().queue.cancel(directory);  // as rm of one file does
  writer().staging.unlink(directory, "config.json");
  refused();
  restarted();
  refused();
  const StagingId rest = writer().find(kPublishRoot, "step-1").value();
  writer().queue.take_back(rest, kStagingRoot, "rest");
  writer().start();
  writer().hand_over(again, "step-1");
  EXPECT_TRUE(writer().settles());
  expect_version(1, checkpoint(2));
}

/// mv tries them, where the name in publish/ is taken: they were EROFS without a reason.
TEST_F(PublishQueueTest, RenamesIntoWhatIsOnItsWayAreToldWhy) {
  const auto refused = [&](const std::string& says) {
    std::string message;
    EXPECT_EQ(code_of([&] { writer().queue.check_free("step-1"); }, &message), ErrorCode::busy);
    EXPECT_NE(message.find(says), message.npos) << message;
    EXPECT_EQ(writer().queue.last_error().substr(24), "publish/step-1: " + message);
  };
  const StagingId directory = writer().stage("run", checkpoint(1));
  writer().queue.check_free("step-1");
  EXPECT_EQ(writer().queue.last_error(), "");
  writer().hand_over(directory, "step-1");
  refused("publish/step-1 is already being published (queued)");
  writer().queue.cancel(directory);
  refused("publish/step-1 is what is left of a hand-over");
}

TEST_F(PublishQueueTest, RenamesWithinPublishFindNoOlderReason) {
  hand_over(1);
  EXPECT_EQ(code_of([&] { hand_over(1); }), ErrorCode::busy);
  writer().queue.note_rename("step-1");
  const std::string last = writer().queue.last_error();
  EXPECT_NE(last.find("mv publish/step-1 staging/step-1"), last.npos) << last;
  EXPECT_EQ(last.find("already being published"), last.npos) << last;
}

/// A wait for the tag must tell which versions are older: see WaitConditionTest.
TEST_F(PublishQueueTest, HowAHandOverEndedTellsTheNewestVersionOfThatTime) {
  hooks_->before = [&](const BucketCall& call) { gate_.pass(call.context); };
  const std::uint64_t first = started().hand_over(writer().stage("run", checkpoint(1)), "best");
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(first).newest, 1U);
  gate_.close();
  const StagingId again = writer().stage("again", checkpoint(2));
  const std::uint64_t second = writer().hand_over(again, "best");
  writer().queue.cancel(again);
  gate_.open();
  EXPECT_EQ(end_of(second).how, How::taken_back);
  EXPECT_EQ(end_of(second).newest, 1U);
}

TEST_F(PublishQueueTest, RefusesWhatIsStillOpenForWritingAndNamesFileAndHolders) {
  std::vector<std::string> asked;
  options_.holders = [&](const std::vector<StagedFile>& files) -> std::string {
    for (const StagedFile& file : files) asked.push_back(file.path);
    return asked.size() == 1 ? "pid 123 (python3)" : "";
  };
  const StagingId directory = started().stage("run", checkpoint(1));
  const StagingId config = writer().find(directory, "config.json").value();
  writer().staging.open(config, true);
  std::string message;
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }, &message), ErrorCode::busy);
  EXPECT_NE(message.find("staging/run/config.json is still open"), message.npos) << message;
  EXPECT_NE(message.find("held by pid 123 (python3)"), message.npos) << message;
  EXPECT_EQ(asked, std::vector<std::string>{"config.json"});
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }, &message), ErrorCode::busy);
  EXPECT_NE(message.find("held by no visible process (one of another PID namespace"), message.npos)
      << message;
  EXPECT_EQ(message.find("lease"), message.npos) << "the mount would have been refused";
  writer().staging.release(config, true);
  writer().hand_over(directory, "step-1");
  EXPECT_TRUE(writer().settles());
}

// Each hand-over was "still open for writing, held by no visible process".
TEST_F(PublishQueueTest, RefusesAStoreWhoseFileSystemHasNoLeases) {
  started();
  std::string message;
  // A directory has none anywhere.
  EXPECT_EQ(code_of([&] { require_leases(writer().store->path()); }, &message),
            ErrorCode::unsupported);
  for (const char* words : {"has no leases", "Invalid argument", "choose another --store"}) {
    EXPECT_NE(message.find(words), message.npos) << message;
  }
  // NFSv4 and SMB answer as if somebody wrote to each file.
  const File held = File::open(writer().store->path() / "STORE", O_WRONLY);
  EXPECT_EQ(code_of([&] { restarted(); }, &message), ErrorCode::unsupported);
  EXPECT_NE(message.find("has no leases"), message.npos) << message;
  EXPECT_NE(message.find("choose another --store"), message.npos) << message;
}

TEST_F(PublishQueueTest, SaysWhyTheKernelDoesNotTellWhoWrites) {
  const StagingId directory = started().stage("run", checkpoint(1));
  const StagingId config = writer().find(directory, "config.json").value();
  const auto backing = writer().staging.backing_path(config);
  const auto marker = writer().store->path() / "STORE";
  std::string message;
  {
    const NoLeases none;
    if (!none.works()) GTEST_SKIP() << "needs root";
    NoLeases::give_away(backing);
    EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }, &message),
              ErrorCode::permission);
    NoLeases::take_back(backing);
  }
  EXPECT_NE(message.find("Permission denied): only its owner may"), message.npos) << message;
  EXPECT_EQ(message.find("has no leases"), message.npos) << message;
  EXPECT_TRUE(is_staged("run"));
  {
    const NoLeases none;
    NoLeases::give_away(marker);
    EXPECT_EQ(code_of([&] { restarted(); }, &message), ErrorCode::permission);
    NoLeases::take_back(marker);
  }
  EXPECT_NE(message.find("who has CAP_LEASE"), message.npos) << message;
  started().hand_over(directory, "step-1");
  EXPECT_TRUE(writer().settles());
}

TEST_F(PublishQueueTest, AFileThatCannotBeOpenedIsNotTakenForOneThatIsWritten) {
  const StagingId directory = writer().stage("run", checkpoint(1));
  std::string message;
  {
    const FewDescriptors none;
    EXPECT_EQ(code_of([&] { wait_unwritten(writer().staging, directory, {}, Clock::now(), {}); },
                      &message),
              ErrorCode::io);
  }
  EXPECT_NE(message.find("Too many open files"), message.npos) << message;
}

TEST_F(PublishQueueTest, RefusesWhatIsStillMappedWritable) {
  const StagingId directory = started().stage("run", checkpoint(1));
  const auto backing =
      writer().staging.backing_path(writer().find(directory, "config.json").value());
  const auto size = static_cast<std::size_t>(stdfs::file_size(backing));
  void* mapped = MAP_FAILED;
  {
    const File file = File::open(backing, O_RDWR);
    mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  }
  ASSERT_NE(mapped, MAP_FAILED);
  std::string message;
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }, &message), ErrorCode::busy);
  EXPECT_NE(message.find("staging/run/config.json"), message.npos) << message;
  ::munmap(mapped, size);
  writer().hand_over(directory, "step-1");
  EXPECT_TRUE(writer().settles());
}

TEST_F(PublishQueueTest, TakesOnlyFilesOfItsCallerUnlessThatIsRoot) {
  const StagingId directory = started().stage("run", checkpoint(1));
  writer().staging.make_file(directory, "theirs.json", 0600, {.uid = 1000, .gid = 1000});
  const auto hand_over_as = [&](uid_t uid, std::string* message) {
    HandOverOptions options;
    options.caller = {uid, uid};
    return code_of([&] { writer().hand_over(directory, "step-1", options); }, message);
  };
  std::string message;
  EXPECT_EQ(hand_over_as(1001, &message), ErrorCode::permission);
  EXPECT_NE(message.find("staging/run/config.json"), message.npos) << message;
  EXPECT_EQ(hand_over_as(1000, &message), ErrorCode::permission);
  for (const StagedFile& file : writer().staging.list(directory)) {
    if (file.path != "theirs.json") writer().staging.change(file.id, {.uid = 1000});
  }
  EXPECT_EQ(hand_over_as(1001, &message), ErrorCode::permission);
  EXPECT_NE(message.find("belong to uid 1000, but uid 1001 is handing over"), message.npos)
      << message;
  EXPECT_EQ(writer().queue.last_error().substr(24), "publish/step-1: " + message);
  EXPECT_TRUE(is_staged("run"));
  writer().staging.unlink(directory, "theirs.json");
  HandOverOptions own;
  own.caller = {1000, 1000};
  writer().hand_over(directory, "step-1", own);
  EXPECT_TRUE(writer().settles());
  expect_version(1, checkpoint(1));
  writer().hand_over(writer().stage("roots", checkpoint(2)), "step-2");
  EXPECT_TRUE(writer().settles());
}

TEST_F(PublishQueueTest, CodesEarlyOnlyWhatItsOwnerMayHandOver) {
  started();
  const Files files = checkpoint(1, 1'200'000);
  const StagingId theirs = writer().stage("theirs", {});
  for (const auto& [path, bytes] : files) {
    const StagingId file =
        writer().staging.make_file(theirs, path, 0644, {.uid = 1000, .gid = 1000});
    write_at(File::open(writer().staging.backing_path(file), O_WRONLY).fd(), 0, as_bytes(bytes),
             "");
    writer().queue.look_at(file);
  }
  writer().stage("run", files);
  ASSERT_TRUE(eventually([&] { return writer().queue.early().coded_files == 2; }));
  for (const StagedFile& file : writer().staging.list(theirs)) {
    writer().staging.change(file.id, {.uid = 0});
  }
  writer().queue.look_at(theirs);
  EXPECT_TRUE(eventually([&] { return writer().queue.early().coded_files == 4; }));
}

/// The kernel blocks all users' renames while one is being refused.
TEST_F(PublishQueueTest, RefusesOneUserManyTimesWithoutWaitingEachTime) {
  constexpr int kTries = 20;
  const StagingId directory = started().stage("run", checkpoint(1));
  const StagingId config = writer().find(directory, "config.json").value();
  writer().staging.open(config, true);
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kTries; i++) {
    EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }), ErrorCode::busy);
  }
  EXPECT_LT(Clock::now() - begin, kTries * kWriterWait / 2);
  writer().staging.release(config, true);
  writer().hand_over(directory, "step-1");
  EXPECT_TRUE(writer().settles());
}

TEST_F(PublishQueueTest, WaitsForAWriterThatIsJustClosing) {
  const StagingId directory = started().stage("run", checkpoint(1));
  const StagingId config = writer().find(directory, "config.json").value();
  writer().staging.open(config, true);
  std::jthread closing([&] {
    // Refused opens show that the seal is being tried.
    EXPECT_TRUE(eventually([&] {
      try {
        writer().staging.open(config, true);
        writer().staging.release(config, true);
        return false;
      } catch (const PosixError& error) {
        return error.number() == EBUSY;
      }
    }));
    writer().staging.release(config, true);
  });
  writer().hand_over(directory, "step-1");
  closing.join();
  EXPECT_TRUE(writer().settles());
  expect_version(1, checkpoint(1));
}

TEST_F(PublishQueueTest, CanBeStoppedWhileItWaitsForAWriter) {
  const StagingId directory = started().stage("run", checkpoint(1));
  const StagingId config = writer().find(directory, "config.json").value();
  writer().staging.open(config, true);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(code_of([&] { writer().queue.hand_over(directory, "step-1", {}, {stop.get_token()}); }),
            ErrorCode::cancelled);
  EXPECT_TRUE(is_staged("run"));
}

TEST_F(PublishQueueTest, RefusesOnAFullDiskAndLeavesEverythingAsItWas) {
  space_ = [&] { return Space{free_, std::uint64_t{1} << 40}; };
  const StagingId directory = started().stage("run", checkpoint(1));
  free_ = kRecordsFloorBytes - 1;
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }), ErrorCode::no_space);
  EXPECT_TRUE(is_staged("run"));
  EXPECT_FALSE(is_queued("step-1"));
  EXPECT_FALSE(has_links());
  free_ = std::uint64_t{1} << 40;
  writer().hand_over(directory, "step-1");
  EXPECT_TRUE(writer().settles());
  expect_version(1, checkpoint(1));
}

}  // namespace
}  // namespace weightfs::test
