// EarlyAnnouncer: what readers are told before the hand-over, and when it is taken back.
#include "store/handover/early_announcer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/repository/early_records.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {
namespace {

class EarlyAnnouncerTest : public testing::Test {
 protected:
  ~EarlyAnnouncerTest() override { announcer_.stop(); }

  EarlyRecord record(std::uint64_t version, const std::vector<std::string>& paths) {
    EarlyRecord record;
    record.repository = repository_->id();
    record.version = version;
    for (const std::string& path : paths) record.files.push_back({path, {}});
    return record;
  }

  void tell(EarlyComing coming) {
    {
      const std::lock_guard lock(mutex_);
      coming_ = std::move(coming);
    }
    announcer_.wake();
  }

  [[nodiscard]] std::size_t files_told(std::uint64_t version) {
    const auto found = find_early_record(*repository_, version, {});
    return found ? found->files.size() : 0;
  }
  testing::AssertionResult has_told(std::uint64_t version, std::size_t files) {
    if (eventually([&] { return files_told(version) == files; }))
      return testing::AssertionSuccess();
    return testing::AssertionFailure() << files_told(version) << " files of version " << version;
  }

  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  std::unique_ptr<Repository> repository_ =
      Repository::open(std::make_unique<BucketView>(bucket_), {});
  std::mutex mutex_;  // guards the next
  EarlyComing coming_;
  EarlyAnnouncer announcer_{*repository_, [this] {
                              const std::lock_guard lock(mutex_);
                              return coming_;
                            }};
};

TEST_F(EarlyAnnouncerTest, TellsTheNewestState) {
  announcer_.start();
  tell({2, record(2, {"a"})});
  EXPECT_TRUE(has_told(2, 1));
  tell({2, record(2, {"a", "b"})});
  EXPECT_TRUE(has_told(2, 2));
}

TEST_F(EarlyAnnouncerTest, KeepsItWhileAHandOverIsPublishedAndRemovesItThen) {
  announcer_.start();
  tell({2, record(2, {"a"})});
  EXPECT_TRUE(has_told(2, 1));
  tell({});  // the queue works
  tell({3, record(3, {"b"})});
  EXPECT_TRUE(has_told(3, 1));
  EXPECT_TRUE(has_told(2, 0));
  EXPECT_EQ(files_told(3), 1u);
}

TEST_F(EarlyAnnouncerTest, TakesItBackWhenAllFilesAreGone) {
  announcer_.start();
  tell({2, record(2, {"a"})});
  EXPECT_TRUE(has_told(2, 1));
  tell({2, std::nullopt});
  EXPECT_TRUE(has_told(2, 0));
}

TEST_F(EarlyAnnouncerTest, SendsNothingTwice) {
  announcer_.start();
  tell({2, record(2, {"a"})});
  EXPECT_TRUE(has_told(2, 1));
  bucket_->erase(keys::early_record(2));
  tell({2, record(2, {"a"})});
  tell({2, record(2, {"a", "b"})});
  EXPECT_TRUE(has_told(2, 2));
}

TEST_F(EarlyAnnouncerTest, ABucketThatRefusesIsAskedAgainWithTheNextChange) {
  bucket_->fail_key("early/", ErrorCode::permission);
  announcer_.start();
  tell({2, record(2, {"a"})});
  tell({2, record(2, {"a", "b"})});
  bucket_->heal();
  announcer_.wake();
  EXPECT_TRUE(has_told(2, 2));
}

// R2 takes one write of a key a second.  What it refused took the packs of the same save their
// places among the requests in flight, and their attempts.
TEST_F(EarlyAnnouncerTest, APutThatTimedOutIsFollowedToo) {
  bucket_->fail_key("early/", ErrorCode::timed_out);
  announcer_.start();
  tell({2, record(2, {"a"})});
  ASSERT_TRUE(eventually([&] { return bucket_->failures() > 0; }));
  bucket_->heal();
  EXPECT_TRUE(has_told(2, 1)) << "nobody wakes it";
}

TEST_F(EarlyAnnouncerTest, WhereAWriteIsRefusedForNowTheNewestStateFollowsASecondLater) {
  bucket_->fail_key("early/", ErrorCode::unavailable);
  announcer_.start();
  tell({2, record(2, {"a"})});
  ASSERT_TRUE(eventually([&] { return bucket_->failures() > 0; }));
  bucket_->heal();
  EXPECT_TRUE(has_told(2, 1)) << "nobody wakes it";

  const std::uint64_t puts = bucket_->calls("put");
  const auto begin = Clock::now();
  std::vector<std::string> paths{"a"};
  while (paths.size() < 1000) {
    paths.push_back(fmt::format("a{:05}", paths.size()));
    tell({2, record(2, paths)});
    std::this_thread::yield();
  }
  EXPECT_TRUE(has_told(2, paths.size()));
  const auto seconds = static_cast<std::uint64_t>((Clock::now() - begin) / std::chrono::seconds(1));
  EXPECT_LE(bucket_->calls("put") - puts, 1 + seconds);
}

TEST_F(EarlyAnnouncerTest, EndsThoughTheBucketHangs) {
  bucket_->hang_key("early/");
  announcer_.start();
  tell({2, record(2, {"a"})});
  announcer_.stop();
  bucket_->heal();
  EXPECT_EQ(files_told(2), 0u);
}

}  // namespace
}  // namespace weightfs::test
