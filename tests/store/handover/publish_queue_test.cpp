// PublishQueue: from staging to version, taking back, and all of it at once.
#include "store/handover/publish_queue.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <set>
#include <thread>

#include "store/format/own_meta.hpp"
#include "store/materialize/bases.hpp"
#include "tests/store/handover/publish_queue_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/fresh_spans.hpp"
#include "tests/support/random.hpp"
#include "tests/support/writer.hpp"

namespace weightfs::test {
namespace {

// ---- from staging to version ----

TEST_F(PublishQueueTest, PublishesWhatIsHandedOverAndGivesTheRestBack) {
  Files files = checkpoint(1);
  const Files published = files;
  files["optimizer.pt"] = "pickle";
  files["logs/.hidden"] = "hidden";
  const StagingId directory = started().stage("run", files);
  HandOverOptions options;
  options.wishes.meta = {{"loss", "0.5"}};
  const std::uint64_t order = writer().hand_over(directory, "step-1", options);
  EXPECT_FALSE(is_staged("run"));
  ASSERT_TRUE(writer().settles());

  EXPECT_FALSE(is_queued("step-1"));
  EXPECT_FALSE(has_links());
  EXPECT_EQ(manifest_of(1).tag, "step-1");
  EXPECT_EQ(users_meta(manifest_of(1).meta), options.wishes.meta);
  EXPECT_EQ(find_early_bytes(manifest_of(1).meta), 0u);
  EXPECT_EQ(shown_, 1u);
  EXPECT_EQ(read_tree(writer().store->images().image_directory(1)), published);
  expect_version(1, published);
  const HandOverEnd end = end_of(order);
  EXPECT_EQ(end.how, How::published);
  EXPECT_EQ(end.version, 1u);
  EXPECT_EQ(end.left, "run");
  EXPECT_EQ(writer().read(writer().find(kStagingRoot, "run").value()),
            (Files{{"optimizer.pt", "pickle"}, {"logs/.hidden", "hidden"}}));
}

TEST_F(PublishQueueTest, RecordsHowLongAHandOverTook) {
  const auto before = std::chrono::system_clock::now();
  std::uint64_t bytes = 0;
  for (const auto& [path, text] : checkpoint(1)) bytes += text.size();
  started();
  hand_over(1);
  ASSERT_TRUE(writer().settles());
  const auto record = writer().store->timings().find(1);
  ASSERT_TRUE(record && record->handed_over);
  EXPECT_EQ(record->brought, std::nullopt);
  const HandOverTiming& timing = *record->handed_over;
  EXPECT_EQ(timing.name, "step-1");
  EXPECT_EQ(timing.attempts, 1u);
  EXPECT_EQ(timing.bytes, bytes);
  EXPECT_EQ(timing.early_bytes, 0u);
  EXPECT_GT(timing.uploaded_bytes, bytes / 2);
  const auto zero = std::chrono::nanoseconds::zero();
  for (const auto phase :
       {timing.seal, timing.wait, timing.code, timing.upload, timing.commit, timing.adopt}) {
    EXPECT_GT(phase, zero);
  }
  EXPECT_GE(std::chrono::nanoseconds(timing.begun_ns),
            std::chrono::nanoseconds(before.time_since_epoch()));
  EXPECT_LE(std::chrono::nanoseconds(timing.begun_ns) + timing.total(),
            std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()) +
                std::chrono::milliseconds(1));
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
  const auto path =
      writer().store->images().image_directory(1) / "model-00001-of-00002.safetensors";
  ASSERT_EQ(::stat(path.c_str(), &image), 0);
  EXPECT_EQ(image.st_ino, before.st_ino);
  EXPECT_EQ(image.st_nlink, 1u);
  EXPECT_EQ(image.st_mode & 07777, 0444u);
  EXPECT_FALSE(is_staged("run"));
}

/// Files large enough to be coded early, and smaller ones.
TEST_F(PublishQueueTest, NotesWhatChangesInWhatItPublishes) {
  started();
  Store& store = *writer().store;
  store.fresh_patches().add_taker();
  const auto base = [&](std::uint64_t version) {
    return base_of(store, writer().history, version, {});
  };
  const std::size_t sizes[] = {kQueueElements, kQueueElements, 1'200'000, 1'200'000};
  for (unsigned v = 1; v <= 4; v++) {
    const std::string name = "step-" + std::to_string(v);
    writer().hand_over(writer().stage(name, checkpoint(v, sizes[v - 1])), name);
    ASSERT_TRUE(writer().settles());
    if (v == 1) continue;
    const Base from = base(v - 1), to = base(v);
    const auto span = store.fresh_patches().take({v - 1, from.version->manifest_sha256});
    ASSERT_EQ(span != nullptr, v != 3) << "another table";
    if (span) expect_as_compared(store.patches(), from, to, *span);
  }
  EXPECT_EQ(store.fresh_patches().counters(), FreshCounters{});
}

TEST_F(PublishQueueTest, NotesOfARollbackAreThoseOfMakingItsImages) {
  started();
  Store& store = *writer().store;
  for (unsigned v = 1; v <= 2; v++) {
    hand_over(v);
    ASSERT_TRUE(writer().settles());
  }
  store.fresh_patches().add_taker();
  HandOverOptions back;
  back.wishes.rollback = 1;
  writer().hand_over(writer().stage("back", {}), "back", back);
  ASSERT_TRUE(writer().settles());
  const Base from = base_of(store, writer().history, 2, {});
  const Base to = base_of(store, writer().history, 3, {});
  const auto span = store.fresh_patches().take({2, from.version->manifest_sha256});
  ASSERT_TRUE(span);
  expect_as_compared(store.patches(), from, to, *span);
  EXPECT_FALSE(store.fresh_patches().take({2, from.version->manifest_sha256})) << "once";
}

TEST_F(PublishQueueTest, RemovesImagesOfOldVersionsAsAReaderDoes) {
  started();
  for (unsigned v = 1; v <= 5; v++) {
    hand_over(v);
    ASSERT_TRUE(writer().settles());
  }
  EXPECT_EQ(writer().store->images().complete_versions(), (std::vector<std::uint64_t>{3, 4, 5}));
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

TEST_F(PublishQueueTest, CodesFilesOnceTheirParentHasArrived) {
  const Files files = checkpoint(2, 1'200'000);
  checkpoint(1, 1'200'000);
  publish_elsewhere(1);
  started();
  writer().stage("run", files);
  ASSERT_TRUE(eventually([&] { return writer().queue.early().waiting_files == 2; }));
  materialize(*writer().store, writer().history, 1, {}, {});  // like the sync
  writer().queue.parent_arrived();
  EXPECT_TRUE(eventually([&] { return writer().queue.early().coded_files == 2; }));
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
  // The same size and time, and no event told the pre-encoder.
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

// The mount hears of the last close by the hand-over itself, if nothing told it before.  The file
// is written through another link, so that inotify does not tell.
TEST_F(PublishQueueTest, AHandOverDoesNotEndTheEarlyWorkOnItsFiles) {
  std::atomic<bool> holds = false;
  options_.at = [&](std::string_view point) {
    if (!holds || point != "scanned") return;
    const auto is_given_up = [&] {
      const EarlyStatus early = writer().queue.early();
      return early.coded_files + early.growing_files + early.waiting_files < 2;
    };
    EXPECT_FALSE(eventually(is_given_up, std::chrono::milliseconds(200)));  // it is soon, if at all
  };
  started();
  writer().hand_over(writer().stage("first", checkpoint(1, 2'400'000)), "step-1");
  ASSERT_TRUE(writer().settles());
  const Files files = checkpoint(2, 2'400'000);
  const std::string last = "model-00002-of-00002.safetensors";
  Files others = files;
  others.erase(last);
  const StagingId directory = writer().stage("run", others);
  const StagingId id = writer().staging.make_file(directory, last, 0644, {});
  const stdfs::path link = dir_ / "link";
  stdfs::create_hard_link(writer().staging.backing_path(id), link);
  writer().staging.open(id, true);
  {
    const File file = File::open(link, O_WRONLY);
    const auto bytes = as_bytes(files.at(last));
    const std::size_t begin = bytes.size() / 4 * 3;
    write_at(file.fd(), 0, bytes.first(begin), link);
    writer().queue.look_at(id);
    ASSERT_TRUE(eventually([&] {
      const EarlyStatus early = writer().queue.early();
      return early.growing_files == 1 && early.coded_files == 1;
    }));
    holds = true;
    write_at(file.fd(), begin, bytes.subspan(begin), link);
  }
  writer().staging.release(id, true);
  writer().hand_over(directory, "step-2");
  ASSERT_TRUE(writer().settles());
  std::uint64_t weights = 0;
  for (const auto& [path, bytes] : files) {
    if (path.ends_with(".safetensors")) weights += bytes.size();
  }
  EXPECT_EQ(manifest_of(2).meta.at(std::string(kEarlyBytesKey)), std::to_string(weights));
  expect_version(2, files);
}

// A saver that was killed, and all its ranks with it.
TEST_F(PublishQueueTest, ATemporaryFileWhoseWriterIsGoneIsGivenUp) {
  options_.name_patience = {};
  started();
  writer().hand_over(writer().stage("first", checkpoint(1, 2'400'000)), "step-1");
  ASSERT_TRUE(writer().settles());
  const std::string bytes = checkpoint(2, 2'400'000).at("model-00001-of-00002.safetensors");
  const StagingId directory = writer().staging.make_directory(kStagingRoot, "dead", 0755, {});
  const auto growing = [&] { return writer().queue.early().growing_files; };
  std::vector<StagingId> files;
  for (const std::string name : {".tmp1", ".tmp2"}) {
    const StagingId id = files.emplace_back(writer().staging.make_file(directory, name, 0644, {}));
    writer().staging.open(id, true);
    const stdfs::path backing = writer().staging.backing_path(id);
    const File file = File::open(backing, O_WRONLY);
    write_at(file.fd(), 0, as_bytes(bytes).first(bytes.size() / 4 * 3), backing);
    writer().queue.look_at(id);
    ASSERT_TRUE(eventually([&] { return growing() == files.size(); })) << name;
  }
  for (const StagingId id : files) {
    if (writer().staging.release(id, true)) writer().queue.look_at(id);
  }
  EXPECT_TRUE(eventually([&] { return growing() == 0; }));
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
  // Handed over from below a top-level directory, so its files have other paths in the version.
  gate_.close();
  writer().hand_over(nested, "step-1");
  EXPECT_TRUE(is_coded_after_a_close(0));
  gate_.open();
  ASSERT_TRUE(writer().settles());
  expect_version(1, files);
  writer().staging.release(again, true);
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
  writer().write(directory, "config.json", "{}");  // writable again
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

/// The bucket ignores its context: what it finally does has no effect.
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

thread_local bool takes_back = false;  // this thread does

/// The next one was published before it, while nobody knew yet whether it was taken back.
TEST_F(PublishQueueTest, KeepsTheOrderWhereItCannotBeTakenBack) {
  Gate write;
  space_ = [&]() -> Space {
    if (!takes_back) return {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
    write.pass({});
    return {0, std::uint64_t{1} << 40};
  };
  hooks_->before = [&](const BucketCall& call) {
    if (call.kind == "put") gate_.pass(call.context);
  };
  gate_.close();
  write.close();
  started();
  const std::uint64_t first = hand_over(1), second = hand_over(2);
  ASSERT_TRUE(gate_.is_reached());
  const StagingId directory = writer().get(first).directory;
  std::jthread taker([&] {
    takes_back = true;
    EXPECT_EQ(code_of([&] { writer().queue.take_back(directory, kStagingRoot, "back"); }),
              ErrorCode::no_space);
  });
  EXPECT_TRUE(write.is_reached());
  EXPECT_TRUE(eventually([&] { return writer().get(first).state != State::uploading; }));
  write.open();
  taker.join();
  gate_.open();
  ASSERT_TRUE(writer().settles());
  EXPECT_EQ(end_of(first).version, 1u);
  EXPECT_EQ(end_of(second).version, 2u);
  expect_version(1, checkpoint(1));
}

TEST_F(PublishQueueTest, LetsFilesBeRemovedAfterItWasCancelled) {
  const std::uint64_t order = hand_over(1);
  const StagingId directory = writer().find(kPublishRoot, "step-1").value();
  EXPECT_THROW(writer().staging.unlink(directory, "config.json"), PosixError);
  writer().queue.cancel(directory);
  EXPECT_EQ(end_of(order).how, How::taken_back);
  writer().staging.unlink(directory, "config.json");
  // Interrupted, and continued by another process.
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

// ---- concurrency ----

/// Threads hand over, take back, cancel and read, on a bucket with random failures: at the end
/// every hand-over is in exactly one place, and every version is whole.
TEST_F(PublishQueueTest, KeepsEveryHandOverInOnePlaceUnderRandomCalls) {
  Random rng = make_rng();
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
