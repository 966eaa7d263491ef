#include "fs/runtime/announcer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <new>

#include "store/base/error.hpp"
#include "store/readers/reader_list.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::fs {
namespace {

using test::eventually;

class AnnouncerTest : public testing::Test {
 protected:
  DaemonState state() {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  void show(std::uint64_t version) {
    const std::lock_guard lock(mutex_);
    state_.sync.latest = state_.sync.newest = version;
    if (!state_.sync.partial.contains(version)) state_.versions = {version};
  }
  void fill(std::uint64_t version, bool is_whole) {
    const std::lock_guard lock(mutex_);
    if (is_whole) {
      state_.sync.partial.erase(version);
      state_.versions = {version};
    } else {
      state_.sync.partial[version] = {};
      state_.versions.clear();
    }
  }
  void report(std::uint64_t version) {
    HookStatus hook;
    hook.type = "vllm";
    hook.target = "http://h:1";
    hook.state = HookStatus::State::current;
    hook.reported = version;
    const std::lock_guard lock(mutex_);
    state_.hooks = {hook};
  }

  Announcer make(std::chrono::seconds every = std::chrono::seconds(3'000)) {
    return Announcer(*repository_, *db_, {.is_on = true, .every = every},
                     {.shown =
                          [this] {
                            if (looks_fail_) throw std::bad_alloc();
                            return state().sync.latest;
                          },
                      .hooks = [this] { return state().hooks; },
                      .state = [this] { return state(); }});
  }

  /// What the bucket has; nullopt: nothing.
  std::optional<ReaderRecord> find_record() {
    const ReaderList list = ReaderLister(*repository_).list({});
    EXPECT_TRUE(list.unreadable.empty());
    EXPECT_LE(list.readers.size(), 1u);
    return list.readers.empty() ? std::nullopt : std::optional(list.readers[0].record);
  }
  bool waits_for(const std::function<bool(const ReaderRecord&)>& is_there) {
    return eventually([&] {
      const auto record = find_record();
      return record && is_there(*record);
    });
  }

  test::RepositoryBuilder builder_;
  std::shared_ptr<test::MemoryBucket> bucket_ = builder_.bucket();
  std::unique_ptr<Repository> repository_ = builder_.open();
  test::TempDir directory_;
  std::unique_ptr<Db> db_ = Db::open(directory_ / "db");
  std::atomic<bool> looks_fail_ = false;
  std::mutex mutex_;
  DaemonState state_ = [this] {
    DaemonState state;
    state.repository = repository_->id();
    state.mount_point = "/mnt/w";
    state.pid = 7;
    state.sync.latest = state.sync.newest = 1;
    state.versions = {1};
    return state;
  }();
};

TEST_F(AnnouncerTest, SaysAtOnceWhatChanges) {
  Announcer announcer = make();
  announcer.start();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.version == 1; }));
  const std::string id = find_record()->id;
  EXPECT_EQ(find_record()->place, "/mnt/w");
  EXPECT_TRUE(find_record()->is_whole);
  show(2);
  announcer.wake();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.version == 2; }));
  report(2);
  announcer.wake();  // the first engine: from now on it is looked at
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.engines.size() == 1; }));
  report(3);
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.engines[0].version == 3; }));
  EXPECT_EQ(find_record()->id, id);
  EXPECT_GE(announcer.state().records, 4u);
  EXPECT_EQ(announcer.state().id, id);
  announcer.stop();
  EXPECT_TRUE(find_record()->has_left);
  announcer.stop();  // says it once
  Announcer again = make();
  again.start();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return !record.has_left; }));
  EXPECT_EQ(find_record()->id, id);
}

TEST_F(AnnouncerTest, SaysAtOnceThatAllBytesOfAVersionHaveCome) {
  fill(1, false);
  Announcer announcer = make();
  announcer.start();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.version == 1; }));
  EXPECT_FALSE(find_record()->is_whole);
  fill(1, true);  // nobody wakes it
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.is_whole; }));
  fill(2, false);
  show(2);
  announcer.wake();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.version == 2; }));
  EXPECT_FALSE(find_record()->is_whole);
  fill(2, true);
  announcer.wake();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.is_whole; }));
}

// A damaged disk, or a person, took them; it stays `latest`, and is filled again when it is read.
TEST_F(AnnouncerTest, AVersionWhoseImagesAreLostIsNotWhole) {
  EXPECT_TRUE(reader_record_of(state_, 1000).is_whole);
  state_.versions = {2};
  EXPECT_FALSE(reader_record_of(state_, 1000).is_whole);
}

// The host had it whole by the next round, and the gate of a trainer stayed shut.
TEST_F(AnnouncerTest, AFailedFillBeforeTheVersionCameIsForgotten) {
  state_.sync.partial[1] = {.error = Error(ErrorCode::unavailable, "503"), .is_damaged = true};
  EXPECT_TRUE(reader_record_of(state_, 1000).is_whole);
}

// An earlier mount kept fewer files of it.
TEST_F(AnnouncerTest, AVersionThatLacksFilesOfThisHostIsNotWhole) {
  state_.kept.lacks_files = true;
  EXPECT_FALSE(reader_record_of(state_, 1000).is_whole);
}

TEST_F(AnnouncerTest, ChangesAreWrittenOnceASecondAtMost) {
  Announcer announcer = make();
  const auto begin = Clock::now();
  announcer.start();
  std::uint64_t version = 1;
  ASSERT_TRUE(eventually([&] {
    show(++version);
    announcer.wake();
    return bucket_->calls("put") >= 3;
  }));
  announcer.stop();  // writes one more
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  EXPECT_LE(static_cast<double>(bucket_->calls("put")), elapsed + 2);
}

TEST_F(AnnouncerTest, ABucketThatRefusesIsToldOfAndAskedAgain) {
  bucket_->fail_key("readers/", ErrorCode::permission);
  Announcer announcer = make(std::chrono::seconds(1));
  announcer.start();
  ASSERT_TRUE(eventually([&] { return !announcer.state().error.empty(); }));
  EXPECT_EQ(announcer.state().records, 0u);
  bucket_->heal();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.version == 1; }));
  ASSERT_TRUE(eventually([&] { return announcer.state().error.empty(); }));
  EXPECT_EQ(find_record()->health, "healthy");  // not what announcing itself met
}

TEST_F(AnnouncerTest, ALookThatFailsIsToldOfAndRepeated) {
  Announcer announcer = make();
  announcer.start();
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.version == 1; }));
  looks_fail_ = true;
  announcer.wake();
  ASSERT_TRUE(eventually([&] { return !announcer.state().error.empty(); }));
  show(2);
  looks_fail_ = false;  // nobody wakes it
  ASSERT_TRUE(waits_for([](const ReaderRecord& record) { return record.version == 2; }));
  ASSERT_TRUE(eventually([&] { return announcer.state().error.empty(); }));
}

TEST_F(AnnouncerTest, EndsAtOnceWhileTheBucketDoesNotAnswer) {
  bucket_->hang_key("readers/");
  Announcer announcer = make();
  announcer.start();
  ASSERT_TRUE(eventually([&] { return bucket_->waiting() == 1; }));
  announcer.stop();  // and does not try to say that it has left
  EXPECT_EQ(bucket_->waiting(), 0);
  bucket_->heal();
  EXPECT_EQ(find_record(), std::nullopt);
}

TEST_F(AnnouncerTest, ARecordSaysHowFarBehindAndWhatIsMissing) {
  DaemonState state = state_;
  state.sync.newest = 4;
  state.sync.behind_since = 900;
  state.sync.partial[1] = {};
  state.versions.clear();
  state.sync.error = "the bucket does not answer";
  state.announce = AnnounceState{.error = "refused"};
  const ReaderRecord record = reader_record_of(state, 1000);
  EXPECT_EQ(record.lag_versions, 3u);
  EXPECT_EQ(record.lag_seconds, 100u);
  EXPECT_FALSE(record.is_whole);
  EXPECT_EQ(record.health, "degraded");
  EXPECT_EQ(record.follow, "latest");
  state.sync.latest = state.sync.newest = 0;
  EXPECT_FALSE(reader_record_of(state, 1000).is_whole);
}

}  // namespace
}  // namespace weightfs::fs
