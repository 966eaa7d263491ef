#include "store/handover/publish_queue.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <set>
#include <thread>

#include "store/handover/handover_record.hpp"
#include "store/handover/seal.hpp"
#include "store/publish/pre_encoded.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;
using State = HandOver::State;
using How = HandOverEnd::How;
using Files = std::map<std::string, std::string>;

constexpr std::size_t kQueueElements = 20'000;

/// A repository in memory with hooks, and one writer at a time, which can be stopped and started
/// again as a new process would be.
class PublishQueueTest : public testing::Test {
 protected:
  Writer& writer() {
    if (!writer_) {
      QueueOptions options = options_;
      options.show = [this](std::uint64_t version) {
        EXPECT_TRUE(writer_->store->is_complete(version));
        shown_ = version;
      };
      writer_ = std::make_unique<Writer>(open(), dir_ / "writer", options, space_);
    }
    return *writer_;
  }

  Writer& started() {
    writer().start();
    return writer();
  }

  Writer& restarted() {
    writer_.reset();
    return writer();
  }

  std::unique_ptr<Repository> open() {
    return Repository::open(std::make_unique<HookedBucket>(bucket_, hooks_), {});
  }

  Files checkpoint(unsigned version, std::size_t elements = kQueueElements) {
    const stdfs::path directory = dir_ / ("checkpoint-" + std::to_string(version));
    if (!stdfs::exists(directory)) write_checkpoint(directory, version, elements);
    return read_tree(directory);
  }

  /// Stages a checkpoint and hands it over as step-N.
  std::uint64_t hand_over(unsigned version, const HandOverOptions& options = {}) {
    const std::string name = "step-" + std::to_string(version);
    return writer().hand_over(writer().stage(name, checkpoint(version)), name, options);
  }

  /// Publishes from another host.
  std::uint64_t publish_elsewhere(unsigned version) {
    checkpoint(version);
    Host other(bucket_, dir_ / "other");
    return other.publish(dir_ / ("checkpoint-" + std::to_string(version))).version;
  }

  Manifest manifest_of(std::uint64_t version) {
    return Manifest::parse(bucket_->find(keys::manifest(version)).value(), "manifest");
  }

  std::uint64_t versions_in_bucket() {
    std::uint64_t count = 0;
    while (bucket_->find(keys::manifest(count + 1))) count++;
    return count;
  }

  void expect_version(std::uint64_t version, const Files& files) {
    Host reader(bucket_, dir_ / ("reader-" + std::to_string(readers_++)));
    EXPECT_EQ(reader.read_version(version), files) << version;
  }

  bool is_staged(const std::string& name) { return writer().find(kStagingRoot, name).has_value(); }
  bool is_queued(const std::string& name) { return writer().find(kPublishRoot, name).has_value(); }

  bool has_links() {
    const stdfs::path root = writer().store->path() / "handover";
    return stdfs::exists(root) && !stdfs::is_empty(root);
  }

  /// How the hand-over ended last.
  HandOverEnd end_of(std::uint64_t order) {
    HandOverEnd result;
    for (HandOverEnd& end : writer().queue.ended()) {
      if (end.order == order) result = std::move(end);
    }
    return result;
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  std::shared_ptr<BucketHooks> hooks_ = std::make_shared<BucketHooks>();
  QueueOptions options_;
  std::function<Space()> space_;
  std::atomic<std::uint64_t> shown_{0};

  // For hooks, which may run until the writer is gone.
  Gate gate_;
  std::atomic<std::uint64_t> free_{std::uint64_t{1} << 40};
  std::atomic<int> races_{0}, reads_{0};
  std::atomic<bool> is_broken_{false}, is_flaky_{false};

 private:
  std::unique_ptr<Writer> writer_;
  int readers_ = 0;
};

// ---- from staging to a version ----

TEST_F(PublishQueueTest, PublishesWhatIsHandedOverAndGivesTheRestBack) {
  Files files = checkpoint(1);
  const Files published = files;
  files["optimizer.pt"] = "pickle";
  files["logs/.hidden"] = "hidden";
  const StagingId directory = started().stage("run", files);
  HandOverOptions options;
  options.meta = {{"loss", "0.5"}};
  const std::uint64_t order = writer().hand_over(directory, "step-1", options);
  EXPECT_FALSE(is_staged("run"));
  ASSERT_TRUE(writer().settles());

  EXPECT_FALSE(is_queued("step-1"));
  EXPECT_FALSE(has_links());
  EXPECT_EQ(manifest_of(1).tag, "step-1");
  EXPECT_EQ(users_meta(manifest_of(1).meta), options.meta);
  EXPECT_EQ(find_early_bytes(manifest_of(1).meta), 0u);
  EXPECT_EQ(shown_, 1u);
  EXPECT_EQ(read_tree(writer().store->image_directory(1)), published);
  expect_version(1, published);
  const HandOverEnd end = end_of(order);
  EXPECT_EQ(end.how, How::published);
  EXPECT_EQ(end.version, 1u);
  EXPECT_EQ(end.left, "run");
  EXPECT_EQ(writer().read(writer().find(kStagingRoot, "run").value()),
            (Files{{"optimizer.pt", "pickle"}, {"logs/.hidden", "hidden"}}));
}

TEST_F(PublishQueueTest, MakesTheStagedFilesTheImagesWithoutReadingTheBucket) {
  hooks_->before = [&](const BucketCall& call) {
    const bool is_of_files = call.key.starts_with("snapshots/") || call.key.starts_with("packs/");
    if (call.kind == "get" && is_of_files) reads_++;
  };
  const Files files = checkpoint(1);
  const StagingId directory = started().stage("run", files);
  const StagingId shard = writer().find(directory, "model-00001-of-00002.safetensors").value();
  struct stat before {};
  ASSERT_EQ(::stat(writer().staging.backing_path(shard).c_str(), &before), 0);
  reads_ = 0;
  writer().hand_over(directory, "step-1");
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(reads_, 0);
  struct stat image {};
  const auto path = writer().store->image_directory(1) / "model-00001-of-00002.safetensors";
  ASSERT_EQ(::stat(path.c_str(), &image), 0);
  EXPECT_EQ(image.st_ino, before.st_ino);
  EXPECT_EQ(image.st_nlink, 1u);
  EXPECT_EQ(image.st_mode & 07777, 0444u);
  EXPECT_FALSE(is_staged("run"));
}

TEST_F(PublishQueueTest, RemovesImagesOfOldVersionsAsAReaderDoes) {
  started();
  for (unsigned v = 1; v <= 5; v++) {
    hand_over(v);
    ASSERT_TRUE(writer().settles());
  }
  EXPECT_EQ(writer().store->complete_versions(), (std::vector<std::uint64_t>{3, 4, 5}));
}

TEST_F(PublishQueueTest, PublishesInTheOrderOfTheHandOvers) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") gate_.pass(call.context);
  };
  gate_.close();
  started();
  std::vector<std::uint64_t> orders;
  for (unsigned v = 1; v <= 4; v++) orders.push_back(hand_over(v));
  EXPECT_TRUE(std::is_sorted(orders.begin(), orders.end()));
  ASSERT_TRUE(gate_.is_reached());
  ASSERT_EQ(writer().queue.list().size(), 4u);
  EXPECT_EQ(writer().get(orders[0]).state, State::uploading);
  EXPECT_EQ(writer().get(orders[1]).state, State::queued);
  gate_.open();
  ASSERT_TRUE(writer().settles());
  for (unsigned v = 1; v <= 4; v++) {
    EXPECT_EQ(manifest_of(v).tag, "step-" + std::to_string(v));
    expect_version(v, checkpoint(v));
  }
}

TEST_F(PublishQueueTest, GivesOrdersOnceAlsoOverRestarts) {
  const std::uint64_t first = (started(), hand_over(1));
  ASSERT_TRUE(writer().settles());
  restarted();
  const std::uint64_t second = (started(), hand_over(2));
  EXPECT_GT(second, first);
  ASSERT_TRUE(writer().settles());
}

TEST_F(PublishQueueTest, CodesFilesBeforeTheyAreHandedOver) {
  started();
  Files files = checkpoint(1, 1'200'000);
  const StagingId directory = writer().stage("run", files);
  const auto uploaded = [&] {
    std::set<std::string> keys;
    for (const auto& [key, bytes] : bucket_->objects()) {
      if (key.starts_with("snapshots/1/") && key.ends_with(".safetensors")) keys.insert(key);
    }
    return keys;
  };
  ASSERT_TRUE(eventually([&] { return uploaded().size() == 2; }));
  const auto early = uploaded();
  writer().hand_over(directory, "step-1");
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(uploaded(), early);
  expect_version(1, files);
}

TEST_F(PublishQueueTest, DoesNotTrustEarlyWorkOnAFileThatWasWrittenAgain) {
  started();
  Files files = checkpoint(1, 1'200'000);
  const std::string shard = "model-00001-of-00002.safetensors";
  const StagingId directory = writer().stage("run", files);
  ASSERT_TRUE(eventually([&] {
    for (const auto& [key, bytes] : bucket_->objects()) {
      if (key.starts_with("snapshots/1/") && key.ends_with(shard)) return true;
    }
    return false;
  }));
  // The same size and time, and nobody told the early work.
  const StagingId id = writer().find(directory, shard).value();
  const auto backing = writer().staging.backing_path(id);
  struct stat before {};
  ASSERT_EQ(::stat(backing.c_str(), &before), 0);
  files[shard].back() ^= 1;
  writer().staging.open(id, true);
  {
    const File file = File::open(backing, O_WRONLY);
    write_at(file.fd(), 0, as_bytes(files[shard]), backing);
  }
  writer().staging.release(id, true);
  const timespec times[]{before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, backing.c_str(), times, 0), 0);
  writer().hand_over(directory, "step-1");
  ASSERT_TRUE(writer().settles());
  expect_version(1, files);
}

TEST_F(PublishQueueTest, GivesUpEarlyWorkThatNobodyWillTake) {
  hooks_->before = [&](const BucketCall& call) { gate_.pass(call.context); };
  started();
  const Files files = checkpoint(1, 1'200'000);
  const StagingId run = writer().stage("run", {});
  const StagingId nested = writer().stage("step-1", files, run);
  const StagingId other = writer().stage("other", files);
  ASSERT_TRUE(eventually([&] { return writer().queue.early().coded_files == 4; }));
  const auto is_coded_after_a_close = [&](std::uint64_t files_left) {
    writer().write(run, "any.safetensors", "x");
    return eventually([&] { return writer().queue.early().coded_files == files_left; });
  };
  writer().staging.unlink(other, "model-00001-of-00002.safetensors");
  EXPECT_TRUE(is_coded_after_a_close(3));
  const StagingId again = writer().find(other, "model-00002-of-00002.safetensors").value();
  writer().staging.open(again, true);
  EXPECT_TRUE(is_coded_after_a_close(2));
  // From below a top-level directory: its files have other paths in the version.
  gate_.close();
  writer().hand_over(nested, "step-1");
  EXPECT_TRUE(is_coded_after_a_close(0));
  gate_.open();
  ASSERT_TRUE(writer().settles());
  expect_version(1, files);
  writer().staging.release(again, true);
}

// ---- what cannot be handed over ----

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
  // It is not sealed any more.
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
                           const HandOverOptions& options = {}) {
    return code_of([&] { writer().queue.hand_over(id, name, tag, options, {}); });
  };
  EXPECT_EQ(refused(directory, ".hidden", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(directory, "", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(directory, "ok", "a/b"), ErrorCode::invalid);
  EXPECT_EQ(refused(kStagingRoot, "ok", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(kPublishRoot, "ok", ""), ErrorCode::invalid);
  EXPECT_EQ(refused(writer().find(directory, "config.json").value(), "ok", ""), ErrorCode::invalid);
  HandOverOptions options;
  options.meta = {{"a", "\xff"}};
  EXPECT_EQ(refused(directory, "ok", "", options), ErrorCode::invalid);
  options.meta = {{"weightfs.early_bytes", "7"}};
  EXPECT_EQ(refused(directory, "ok", "", options), ErrorCode::invalid);
  options = {};
  options.include = {"\xff"};
  EXPECT_EQ(refused(directory, "ok", "", options), ErrorCode::invalid);
  EXPECT_TRUE(is_staged("run"));
}

TEST_F(PublishQueueTest, RefusesANameThatIsOnItsWay) {
  hand_over(1);
  const StagingId directory = writer().stage("again", checkpoint(1));
  EXPECT_EQ(code_of([&] { writer().hand_over(directory, "step-1"); }), ErrorCode::busy);
  EXPECT_TRUE(is_staged("again"));
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
  EXPECT_NE(message.find("held by no visible process"), message.npos) << message;
  writer().staging.release(config, true);
  writer().hand_over(directory, "step-1");
  EXPECT_TRUE(writer().settles());
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

/// The kernel holds everybody's renames while one is refused.
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
    // Refused opens tell that the seal is being tried.
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
  EXPECT_EQ(code_of([&] {
              writer().queue.hand_over(directory, "step-1", "step-1", {}, {stop.get_token()});
            }),
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

// ---- taking back ----

TEST_F(PublishQueueTest, TakesBackWhatIsQueued) {
  const std::uint64_t order = hand_over(1);  // not started
  const StagingId directory = writer().find(kPublishRoot, "step-1").value();
  writer().queue.take_back(directory, kStagingRoot, "back");
  EXPECT_EQ(writer().read(writer().find(kStagingRoot, "back").value()), checkpoint(1));
  EXPECT_FALSE(is_queued("step-1"));
  EXPECT_FALSE(has_links());
  EXPECT_TRUE(writer().queue.list().empty());
  EXPECT_EQ(end_of(order).how, How::taken_back);
  started();
  writer().write(directory, "config.json", "{}");  // it can be written again
  writer().hand_over(directory, "step-1");
  ASSERT_TRUE(writer().settles());
  Files files = checkpoint(1);
  files["config.json"] = "{}";
  expect_version(1, files);
}

TEST_F(PublishQueueTest, TakesBackAtOnceWhatIsBeingUploadedToABucketThatHangs) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") gate_.pass(call.context);
  };
  gate_.close();
  started();
  const std::uint64_t order = hand_over(1);
  const std::uint64_t next = hand_over(2);
  ASSERT_TRUE(gate_.is_reached());
  const StagingId directory = writer().find(kPublishRoot, "step-1").value();
  writer().queue.take_back(directory, kStagingRoot, "back");
  EXPECT_EQ(end_of(order).how, How::taken_back);
  EXPECT_EQ(writer().read(directory), checkpoint(1));
  gate_.open();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(next).version, 1u);
  EXPECT_EQ(manifest_of(1).tag, "step-2");
  EXPECT_EQ(versions_in_bucket(), 1u);
  EXPECT_TRUE(eventually([&] { return !has_links(); }));
}

/// The bucket does not heed its context: what it does in the end changes nothing.
TEST_F(PublishQueueTest, DoesNotPublishWhatWasTakenBackWhenTheBucketComesToItself) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") gate_.pass({});
  };
  gate_.close();
  started();
  hand_over(1);
  ASSERT_TRUE(gate_.is_reached());
  const StagingId directory = writer().find(kPublishRoot, "step-1").value();
  writer().queue.take_back(directory, kStagingRoot, "back");
  writer().write(directory, "config.json", "{}");
  gate_.open();
  writer().queue.stop();
  EXPECT_EQ(versions_in_bucket(), 0u);
  EXPECT_TRUE(is_staged("back"));
  EXPECT_FALSE(has_links());
}

TEST_F(PublishQueueTest, DoesNotEvenTryToCommitWhatWasTakenBackAMomentBefore) {
  std::atomic<int> commits{0};
  hooks_->before = [&](const BucketCall& call) {
    if (call.is_manifest_put()) commits++;
  };
  options_.at = [&](std::string_view point) {
    if (point != "before-commit") return;
    const StagingId directory = writer().find(kPublishRoot, "step-1").value();
    writer().queue.take_back(directory, kStagingRoot, "back");
  };
  const std::uint64_t order = (started(), hand_over(1));
  EXPECT_TRUE(eventually([&] { return end_of(order).how == How::taken_back; }));
  writer().queue.stop();
  EXPECT_EQ(commits, 0);
  EXPECT_EQ(versions_in_bucket(), 0u);
  EXPECT_EQ(writer().read(writer().find(kStagingRoot, "back").value()), checkpoint(1));
}

TEST_F(PublishQueueTest, DoesNotTakeBackWhatMayBeAVersion) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.is_manifest_put()) gate_.pass(call.context);
  };
  gate_.close();
  started();
  const std::uint64_t order = hand_over(1);
  ASSERT_TRUE(gate_.is_reached());
  EXPECT_EQ(writer().get(order).state, State::committing);
  EXPECT_EQ(writer().get(order).version, 1u);
  const StagingId directory = writer().find(kPublishRoot, "step-1").value();
  std::string message;
  EXPECT_EQ(code_of([&] { writer().queue.take_back(directory, kStagingRoot, "back"); }, &message),
            ErrorCode::busy);
  EXPECT_NE(writer().queue.last_error().find(message), std::string::npos);
  EXPECT_EQ(code_of([&] { writer().queue.cancel(directory); }), ErrorCode::busy);
  gate_.open();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).how, How::published);
}

TEST_F(PublishQueueTest, GoesOnIfItCannotBeTakenBackToWhereTheUserWants) {
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") gate_.pass(call.context);
  };
  gate_.close();
  started();
  const std::uint64_t order = hand_over(1);
  writer().stage("taken", {});
  ASSERT_TRUE(gate_.is_reached());
  const StagingId directory = writer().find(kPublishRoot, "step-1").value();
  EXPECT_EQ(code_of([&] { writer().queue.take_back(directory, kStagingRoot, "taken"); }),
            ErrorCode::exists);
  gate_.open();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).how, How::published);
  expect_version(1, checkpoint(1));
}

TEST_F(PublishQueueTest, LetsFilesBeRemovedAfterItWasCancelled) {
  const std::uint64_t order = hand_over(1);
  const StagingId directory = writer().find(kPublishRoot, "step-1").value();
  EXPECT_THROW(writer().staging.unlink(directory, "config.json"), PosixError);
  writer().queue.cancel(directory);
  EXPECT_EQ(end_of(order).how, How::taken_back);
  writer().staging.unlink(directory, "config.json");
  // Interrupted, and begun again by another process.
  restarted();
  started();
  EXPECT_TRUE(writer().queue.list().empty());
  writer().queue.cancel(directory);
  for (const auto& [path, bytes] : writer().read(directory)) {
    writer().staging.unlink(directory, path);
  }
  writer().staging.remove_directory(kPublishRoot, "step-1");
  EXPECT_FALSE(is_queued("step-1"));
  EXPECT_EQ(versions_in_bucket(), 0u);
}

// ---- a bucket in trouble ----

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

/// Whether the manifest was written is not known until the bucket answers again.
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
    if (!has_put_) return;  // up to the commit all is well
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
  EXPECT_TRUE(writer().store->is_complete(1));
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
  EXPECT_EQ(read_tree(writer().store->image_directory(1)), checkpoint(1));
}

/// Another writer takes the number in between: the same nonce never becomes two versions.
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

/// A bucket whose network holds manifests back: the client gives up, and the request is carried out
/// later, or never.  Everything else answers.
class LateBucket final : public Bucket {
 public:
  struct Network {
    std::mutex mutex;  // guards the others
    bool is_slow = true;
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
    return bucket_->get(key, offset_bytes, into, context);
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
  std::vector<std::string> list(std::string_view prefix, std::string_view after,
                                const Context& context) override {
    return bucket_->list(prefix, after, context);
  }
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

  /// Hands step-1 over, and waits until its manifest is on its way and the client has given up.
  std::uint64_t begin() {
    const std::uint64_t order = late().hand_over(late().stage("step-1", checkpoint(1)), "step-1");
    EXPECT_TRUE(eventually([&] { return !late().get(order).error.empty(); }));
    return order;
  }
  /// What was held back first is carried out now.
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

/// It was not in the bucket when the commit looked for it, and was taken back then; a moment later
/// it was a version all the same.
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

/// Once the number is another's, the request can do no harm, and the trainer has its files back.
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

/// What fails on the way to the next try says nothing about the one before.
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
  // The one that failed stays until the user takes it back.
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
  EXPECT_TRUE(writer().store->is_complete(1));
}

/// Something in the store makes the links useless: the version comes from the bucket.
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
  materialize(*writer().store, writer().history, 1, {}, {});  // as the sync does
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 1u);
  EXPECT_FALSE(is_staged("step-1"));
}

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

  // A mount that has seen the other version goes on from it.
  restarted();
  started();
  const std::uint64_t again =
      writer().hand_over(writer().find(kStagingRoot, "step-1").value(), "step-1");
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(again).version, 2u);
  expect_version(2, checkpoint(1));
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
  // It stays so until a person says otherwise.
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
  // Once: the next foreign version is a conflict again.
  EXPECT_EQ(publish_elsewhere(8), 7u);
  const std::uint64_t sixth = hand_over(6);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(sixth).state, State::conflict);
}

/// Also of a process before, and a restart keeps what a rebase has said.
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
  options.rebase = true;
  const std::uint64_t order = hand_over(1, options);
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(order).version, 2u);
  expect_version(2, checkpoint(1));
  // What comes after follows it, without a rebase.
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
  options.rebase = true;
  const std::uint64_t rebases = hand_over(4, options), behind = hand_over(5);
  EXPECT_EQ(publish_elsewhere(9), 2u);
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(second).state, State::conflict);
  EXPECT_EQ(writer().get(third).state, State::conflict);
  EXPECT_EQ(end_of(rebases).version, 3u);
  EXPECT_EQ(writer().get(behind).state, State::conflict);
  // Conflicts stay over another restart, and what is handed over then follows the newest version.
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

// ---- after a power cut ----

TEST_F(PublishQueueTest, DoesNotPublishFilesThatThePowerCutMayHaveSpoiled) {
  const std::uint64_t order = hand_over(1);
  std::vector<Db::Change> changes;
  writer().store->db().scan(
      ColumnFamily::handovers, "", [&](std::string_view key, std::string_view value) {
        HandOverRecord record = HandOverRecord::parse(key, value);
        EXPECT_FALSE(record.unsynced_boot.empty());
        record.unsynced_boot = "another run of the machine";
        changes.push_back({ColumnFamily::handovers, std::string(key), record.serialize()});
      });
  writer().store->db().write(changes);
  restarted();
  started();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(writer().get(order).state, State::failed);
  EXPECT_NE(writer().get(order).error.find("restarted"), std::string::npos);
  EXPECT_EQ(versions_in_bucket(), 0u);
}

// ---- all at once ----

/// Threads hand over, take back, cancel and look, over a bucket that fails now and then: whatever
/// was handed over is in one place at the end, and every version is whole.
TEST_F(PublishQueueTest, KeepsEveryHandOverInOnePlaceUnderRandomCalls) {
  std::mt19937_64 rng = make_rng();
  std::mutex rng_mutex;
  const auto chance = [&](unsigned percent) {
    const std::lock_guard lock(rng_mutex);
    return rng() % 100 < percent;
  };
  hooks_->before = hooks_->after = [&](const BucketCall& call) {
    if (is_flaky_ && chance(3))
      throw Error(ErrorCode::unavailable, std::string(call.key) + " fails");
  };
  started();
  is_flaky_ = true;
  std::vector<Files> contents;
  for (unsigned v = 1; v <= 12; v++) contents.push_back(checkpoint(v, 2'000));

  std::mutex taken_mutex;
  std::set<std::uint64_t> taken, removed;
  std::jthread meddler([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const HandOver& item : writer().queue.list()) {
        if (!chance(2)) continue;
        const bool removes = chance(50);
        try {
          if (removes) {
            writer().queue.cancel(item.directory);
          } else {
            writer().queue.take_back(item.directory, kStagingRoot, item.name);
          }
        } catch (const Error& error) {
          continue;
        }
        const std::lock_guard lock(taken_mutex);
        (removes ? removed : taken).insert(item.order);
      }
      writer().queue.wait_change(Clock::now() + std::chrono::milliseconds(1), stop);
    }
  });
  std::map<std::uint64_t, unsigned> orders;
  for (unsigned v = 1; v <= 12; v++) {
    const std::string name = "step-" + std::to_string(v);
    orders[writer().hand_over(writer().stage(name, contents[v - 1]), name)] = v;
  }
  meddler.request_stop();
  meddler.join();
  is_flaky_ = false;
  ASSERT_TRUE(writer().settles());
  for (const auto& [order, v] : orders) {
    const std::string name = "step-" + std::to_string(v);
    const HandOverEnd end = end_of(order);
    if (removed.contains(order) || taken.contains(order)) {
      EXPECT_EQ(end.how, How::taken_back) << name;
      EXPECT_EQ(is_queued(name), removed.contains(order)) << name;
      EXPECT_EQ(is_staged(name), taken.contains(order)) << name;
    } else {
      ASSERT_EQ(end.how, How::published) << name << ": " << end.error;
      EXPECT_EQ(manifest_of(end.version).tag, name);
      EXPECT_FALSE(is_queued(name) || is_staged(name)) << name;
      expect_version(end.version, contents[v - 1]);
    }
  }
  EXPECT_EQ(versions_in_bucket() + removed.size() + taken.size(), orders.size());
  EXPECT_TRUE(eventually([&] { return !has_links(); }));
}

}  // namespace
}  // namespace weightfs::test
