// Poller: what it takes for the newest version and for the followed one, and when it asks again.
#include "store/sync/poller.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/store/sync/sync_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs::test {
namespace {

/// A host that asks the bucket of SyncTest, and brings nothing.
struct Asker {
  Asker(std::unique_ptr<Bucket> bucket, const stdfs::path& store, FollowOptions follow)
      : host(Repository::open(std::move(bucket), {}), store),
        poller(*host.store, host.history, tags, watches, std::move(follow)) {}

  Host host;
  CatalogBuilder tags{*host.store, host.history};
  VersionWatches watches{*host.store};
  Poller poller;
};

class PollerTest : public SyncTest {
 protected:
  std::unique_ptr<Asker> asker(FollowOptions follow = {}) {
    return std::make_unique<Asker>(std::make_unique<BucketView>(bucket_), dir_ / "asker",
                                   std::move(follow));
  }
  /// One that asks so often, has found nothing, and has two versions to find now.
  std::unique_ptr<Asker> asker_every(std::chrono::milliseconds interval) {
    FollowOptions follow;
    follow.poll.interval = interval;
    auto on = asker(follow);
    on->poller.poll({}, true);
    EXPECT_GT(on->poller.delay().count(), 0);
    publish(1);
    publish(2);
    return on;
  }
};

TEST_F(PollerTest, WantsTheNewestVersionAndNoOlderOneThanTheHostHas) {
  const auto on = asker();
  on->poller.poll({});
  EXPECT_TRUE(on->poller.is_reachable());
  EXPECT_EQ(on->poller.newest(), 0u);
  EXPECT_EQ(on->poller.wanted(), 0u);
  publish(1);
  publish(2);
  on->poller.poll({});
  EXPECT_EQ(on->poller.newest(), 2u);
  EXPECT_EQ(on->poller.wanted(), 2u);
  on->poller.has(3);
  EXPECT_EQ(on->poller.wanted(), 3u);
  on->poller.has(1);
  on->poller.poll({});
  EXPECT_EQ(on->poller.newest(), 2u);
  EXPECT_EQ(on->poller.wanted(), 3u);
}

TEST_F(PollerTest, AVersionThatWasMissingAMomentAgoDoesNotWaitForTheAnswerThatItIsTheNewest) {
  const auto on = asker_every(std::chrono::milliseconds(20));
  on->poller.poll({}, true);
  EXPECT_EQ(on->poller.wanted(), 1u);
  EXPECT_EQ(on->poller.delay().count(), 0) << "there may be another one";
  on->poller.poll({}, true);
  EXPECT_EQ(on->poller.wanted(), 2u);
  EXPECT_GT(on->poller.delay().count(), 0);
  publish(3);
  on->poller.poll({}, true);
  EXPECT_EQ(on->poller.delay().count(), 0);
  bucket_->fail_key("", ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { on->poller.poll({}, true); }), ErrorCode::unavailable);
  EXPECT_GT(on->poller.delay().count(), 0);
}

TEST_F(PollerTest, AVersionThatWasMissingLongAgoNeedNotBeTheNewest) {
  const auto on = asker_every(std::chrono::seconds(10));
  on->poller.poll({}, true);
  EXPECT_EQ(on->poller.wanted(), 2u);
}

TEST_F(PollerTest, ChecksTheBucketOnlyAfterAPollThatFoundNothing) {
  FollowOptions follow;
  follow.poll.check_interval = std::chrono::milliseconds(0);
  publish(1);
  publish(2);
  auto watched = std::make_unique<WatchedBucket>(bucket_);
  const WatchedBucket& bucket = *watched;
  Asker on(std::move(watched), dir_ / "asker", follow);
  const std::size_t opened = bucket.gets(keys::kRecord).size();
  on.poller.poll({});
  EXPECT_EQ(bucket.gets(keys::kRecord).size(), opened) << "each version names its parent";
  const std::size_t before = bucket.gets("").size();
  on.poller.poll({});
  std::vector<std::string> asked;
  for (const WatchedBucket::Get& get : bucket.gets("")) asked.push_back(get.key);
  asked.erase(asked.begin(), asked.begin() + static_cast<std::ptrdiff_t>(before));
  EXPECT_EQ(asked, (std::vector<std::string>{keys::manifest(3), std::string(keys::kRecord),
                                             keys::manifest(2)}));
}

TEST_F(PollerTest, WantsTheVersionThatCarriesTheTag) {
  FollowOptions follow;
  follow.what = parse_follow("good");
  const auto on = asker(follow);
  publish(1);
  on->poller.poll({});
  EXPECT_EQ(on->poller.wanted(), 0u);
  publish(2, "good");
  publish(3);
  on->poller.poll({});
  EXPECT_EQ(on->poller.newest(), 3u);
  EXPECT_EQ(on->poller.wanted(), 2u);
}

TEST_F(PollerTest, ABrokenManifestDoesNotHideTheVersionsBeforeIt) {
  publish(1);
  publish(2);
  publish(3);
  const auto mend = spoil(keys::manifest(3));
  const auto on = asker();
  on->poller.poll({});
  EXPECT_EQ(on->poller.newest(), 2u);
  on->poller.poll({});  // what was new came first
  EXPECT_EQ(on->poller.newest(), 2u);
  ASSERT_TRUE(on->poller.beyond());
  expect_names(on->poller.beyond()->what(), keys::manifest(3));
  EXPECT_FALSE(on->poller.is_back());
  mend();
  on->poller.poll({});
  EXPECT_EQ(on->poller.newest(), 3u);
  EXPECT_FALSE(on->poller.beyond());
  EXPECT_TRUE(on->poller.is_back());
}

TEST_F(PollerTest, KeepsWhatItKnewWhileTheBucketIsAwayAndSaysWhenItIsBack) {
  publish(1);
  const auto on = asker();
  on->poller.poll({});
  publish(2);
  bucket_->fail_key("", ErrorCode::unavailable);
  for (int i = 0; i < 2; i++) {
    EXPECT_TRUE(is_offline(error_of([&] { on->poller.poll({}); }).code()));
    EXPECT_FALSE(on->poller.is_reachable());
    EXPECT_EQ(on->poller.newest(), 1u);
  }
  bucket_->heal();
  on->poller.poll({});
  EXPECT_TRUE(on->poller.is_reachable());
  EXPECT_TRUE(on->poller.is_back());
  EXPECT_EQ(on->poller.newest(), 2u);
  on->poller.poll({});
  EXPECT_FALSE(on->poller.is_back());
}

TEST_F(PollerTest, AsksLessOftenTheLongerTheBucketIsAwayAndSeldomIfItIsRefused) {
  using std::chrono::milliseconds;
  FollowOptions follow;
  follow.poll = {milliseconds(100), false};
  publish(1);
  const auto on = asker(follow);
  on->poller.poll({});
  EXPECT_LE(on->poller.delay(), milliseconds(125));
  bucket_->fail_key("", ErrorCode::unavailable);
  for (int i = 0; i < 4; i++) error_of([&] { on->poller.poll({}); });
  EXPECT_GE(on->poller.delay(), milliseconds(1200));  // 100 ms, doubled four times, less a quarter
  bucket_->heal();
  on->poller.poll({});
  EXPECT_LE(on->poller.delay(), milliseconds(125));
  bucket_->fail_key("", ErrorCode::permission);
  error_of([&] { on->poller.poll({}); });
  EXPECT_GE(on->poller.delay(), milliseconds(7500));  // 10 s less a quarter
}

}  // namespace
}  // namespace weightfs::test
