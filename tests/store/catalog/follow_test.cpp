#include "store/catalog/follow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "store/base/error.hpp"
#include "store/catalog/catalog_builder.hpp"
#include "store/sync/sync.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {
namespace {

constexpr std::size_t kFollowElements = 4'000;

// ---- words ----

TEST(Follow, TakesLatestAVersionOrATag) {
  EXPECT_EQ(parse_follow("latest"), Follow{});
  EXPECT_EQ(parse_follow("42"), (Follow{.kind = Follow::Kind::version, .version = 42}));
  EXPECT_EQ(parse_follow("canary"), (Follow{.kind = Follow::Kind::tag, .tag = "canary"}));
  EXPECT_EQ(parse_follow("4x"), (Follow{.kind = Follow::Kind::tag, .tag = "4x"}));
  for (const char* text : {"latest", "42", "canary"})
    EXPECT_EQ(to_string(parse_follow(text)), text);
  EXPECT_EQ(describe(parse_follow("42")), "version 42");
  EXPECT_EQ(describe(parse_follow("canary")), "the tag canary");
}

TEST(Follow, RefusesWhatIsNoneOfThem) {
  for (const char* text : {"", "0", "99999999999999999999", "a/b", ".hidden", "-x"}) {
    EXPECT_EQ(code_of([&] { parse_follow(text); }), ErrorCode::invalid) << text;
  }
}

TEST(Follow, ChoosesAmongWhatIsComplete) {
  std::map<std::uint64_t, std::shared_ptr<const CatalogVersion>> versions;
  for (const auto& [number, tag] : {std::pair(3, "canary"), {5, "canary"}, {6, ""}, {9, "other"}}) {
    auto version = std::make_shared<CatalogVersion>();
    version->tag = tag;
    versions.emplace(number, std::move(version));
  }
  EXPECT_EQ(choose_latest(parse_follow("latest"), versions), 9u);
  EXPECT_EQ(choose_latest(parse_follow("canary"), versions), 5u);
  EXPECT_EQ(choose_latest(parse_follow("nobody"), versions), 0u);
  EXPECT_EQ(choose_latest(parse_follow("6"), versions), 6u);
  EXPECT_EQ(choose_latest(parse_follow("4"), versions), 0u);
  EXPECT_EQ(choose_latest(parse_follow("latest"), {}), 0u);
}

// ---- hosts that follow ----

/// A publisher with a history of tags, and hosts that follow it.
class FollowTest : public testing::Test {
 protected:
  struct Reader {
    Reader(std::unique_ptr<Repository> repository, const std::filesystem::path& store,
           const std::string& follow)
        : host(std::move(repository), store),
          sync(*host.store, host.history, {.follow = {.what = parse_follow(follow)}}) {}

    [[nodiscard]] std::uint64_t latest() const { return sync.catalog()->latest; }
    [[nodiscard]] std::vector<std::uint64_t> versions() const {
      std::vector<std::uint64_t> numbers;
      const auto catalog = sync.catalog();
      for (const auto& [number, version] : catalog->versions) numbers.push_back(number);
      return numbers;
    }

    Host host;
    Sync sync;
  };

  std::unique_ptr<Reader> reader(const std::string& follow, const std::string& store = "reader") {
    return std::make_unique<Reader>(Repository::open(std::make_unique<BucketView>(bucket_), {}),
                                    dir_ / store, follow);
  }
  std::unique_ptr<Reader> offline_reader(const std::string& follow) {
    const std::string url = "file://" + (dir_ / "no-bucket").string();
    return std::make_unique<Reader>(Repository::assume(url, publisher_.repository->id()),
                                    dir_ / "reader", follow);
  }

  void publish(const std::string& tag = "") {
    count_++;
    const auto directory = dir_ / ("checkpoint-" + std::to_string(count_));
    write_checkpoint(directory, static_cast<unsigned>(count_), kFollowElements);
    ASSERT_EQ(publisher_.publish(directory, tag).version, count_);
  }

  void expect_whole(const Reader& on, std::uint64_t version) {
    ASSERT_EQ(on.latest(), version);
    EXPECT_EQ(read_tree(on.sync.catalog()->versions.at(version)->directory),
              read_tree(dir_ / ("checkpoint-" + std::to_string(version))));
  }

  TempDir dir_;
  std::shared_ptr<MemoryBucket> bucket_ = make_memory_repository();
  Host publisher_{bucket_, dir_ / "publisher"};
  std::uint64_t count_ = 0;
};

TEST_F(FollowTest, AFrozenHostHasThatVersionAndNothingNewer) {
  for (int i = 0; i < 3; i++) publish();
  const auto on = reader("2");
  on->sync.run_once({});
  expect_whole(*on, 2);
  publish();
  on->sync.run_once({});
  expect_whole(*on, 2);
  EXPECT_EQ(on->versions().back(), 2u);
  const SyncStatus status = on->sync.status();
  EXPECT_EQ(status.newest, 4u);
  EXPECT_EQ(status.latest, 2u);
  EXPECT_EQ(status.followed, 2u);
  EXPECT_EQ(status.state, SyncStatus::State::current);
}

TEST_F(FollowTest, AFrozenVersionIsNeverReleased) {
  publish();
  publish();
  const auto on = reader("1");
  on->sync.run_once({});
  EXPECT_FALSE(on->host.store->evictor().evict(1));
  expect_whole(*on, 1);
}

TEST_F(FollowTest, AVersionThatDoesNotExistYetIsWaitedFor) {
  publish();
  const auto on = reader("2");
  on->sync.run_once({});
  EXPECT_EQ(on->latest(), 0u);
  EXPECT_TRUE(on->versions().empty());
  on->sync.wait_ready(Context{}.within(std::chrono::seconds(60)), {});  // like an empty repository
  EXPECT_EQ(on->sync.status().followed, 0u);
  publish();
  on->sync.run_once({});
  expect_whole(*on, 2);
}

TEST_F(FollowTest, ATagMovesToTheNewestVersionThatCarriesIt) {
  publish();
  publish("canary");
  publish("other");
  const auto on = reader("canary");
  on->sync.run_once({});
  expect_whole(*on, 2);
  EXPECT_EQ(on->versions(), (std::vector<std::uint64_t>{2}));
  publish();
  on->sync.run_once({});
  expect_whole(*on, 2);
  publish("canary");
  publish();
  on->sync.run_once({});
  expect_whole(*on, 5);
  EXPECT_EQ(on->sync.status().newest, 6u);
  EXPECT_EQ(on->sync.status().followed, 5u);
}

TEST_F(FollowTest, ATagThatNobodyCarriesYetIsWaitedFor) {
  publish();
  const auto on = reader("canary");
  on->sync.run_once({});
  EXPECT_EQ(on->latest(), 0u);
  on->sync.wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  publish("canary");
  on->sync.run_once({});
  expect_whole(*on, 2);
}

// Manifests older than the newest carrier are not needed.
TEST_F(FollowTest, ATagIsLookedForFromTheNewestVersionDownwards) {
  for (int i = 0; i < 12; i++) publish(i == 9 ? "canary" : "");
  const Host host(bucket_, dir_ / "reader");
  History history(*host.repository, host.store.get());
  CatalogBuilder builder(*host.store, history);
  EXPECT_EQ(builder.find_carrier("canary", 12, {}), 10u);
  // Many are read in parallel, so some older ones may be among them.
  const std::vector<std::uint64_t> read = host.store->manifests().manifest_numbers();
  ASSERT_GE(read.size(), 3u);
  EXPECT_EQ(std::vector(read.end() - 3, read.end()), (std::vector<std::uint64_t>{10, 11, 12}));
  EXPECT_EQ(builder.find_carrier("nobody", 12, {}), 0u);
  EXPECT_EQ(host.store->manifests().manifest_numbers().size(), 12u);
}

TEST_F(FollowTest, WithoutTheBucketTheStoresNewestCarrierIsShown) {
  publish("canary");
  publish();
  {
    const auto on = reader("latest");
    on->sync.run_once({});
    expect_whole(*on, 2);
    const auto canary = reader("canary", "other");
    canary->sync.run_once({});
  }
  std::filesystem::remove_all(dir_ / "reader");
  std::filesystem::rename(dir_ / "other", dir_ / "reader");
  publish("canary");
  expect_whole(*offline_reader("canary"), 1);
  EXPECT_EQ(offline_reader("2")->latest(), 0u);
}

TEST_F(FollowTest, AStoreWithNewerVersionsShowsWhatIsFollowedNow) {
  publish("canary");
  {
    const auto on = reader("latest");
    on->sync.run_once({});
    publish();
    on->sync.run_once({});
    expect_whole(*on, 2);
  }
  expect_whole(*reader("canary"), 1);  // at once, before a round
  expect_whole(*reader("1"), 1);
  EXPECT_EQ(reader("nobody")->latest(), 0u);
}

TEST_F(FollowTest, ABrokenCarrierLeavesTheOldOneServed) {
  publish("canary");
  const auto on = reader("canary");
  on->sync.run_once({});
  publish();
  publish("canary");
  std::string key;
  for (const auto& [name, bytes] : bucket_->objects()) {
    if (name.starts_with("packs/3/")) key = name;
  }
  const std::string good = bucket_->find(key).value();
  bucket_->replace(key, good.substr(0, good.size() / 2));
  EXPECT_NE(error_of([&] { on->sync.run_once({}); }).code(), ErrorCode::io);
  expect_whole(*on, 1);  // not 2, which is not followed
  bucket_->replace(key, good);
  on->sync.run_once({});
  expect_whole(*on, 3);
}

// A host that is far behind jumps over it, and never walks up to it.
TEST_F(FollowTest, ABrokenManifestThatMayCarryTheTagIsReported) {
  constexpr std::uint64_t kCarrier = 3, kBroken = 8;
  for (std::uint64_t i = 1; i <= 6 + History::kWalkedMax; i++) {
    publish(i == kCarrier || i == kBroken ? "canary" : "");
  }
  const std::string key = keys::manifest(kBroken), good = bucket_->find(key).value();
  bucket_->replace(key, good.substr(0, good.size() / 2));
  auto on = reader("canary");
  for (int round = 0; round < 2; round++) {  // the second one does not ask for it again
    const Error error = error_of([&] { on->sync.run_once({}); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_NE(std::string(error.what()).find("the tag of version 8"), std::string::npos)
        << error.what();
  }
  expect_whole(*on, kCarrier);
  const SyncStatus status = on->sync.status();
  EXPECT_EQ(status.newest, count_);
  EXPECT_EQ(status.state, SyncStatus::State::waiting);
  EXPECT_EQ(status.error_code, "corrupt");
  bucket_->replace(key, good);
  on.reset();  // the next process asks for it at once
  on = reader("canary");
  on->sync.run_once({});
  expect_whole(*on, kBroken);
}

TEST_F(FollowTest, ABrokenManifestBeforeTheCarrierIsOfNoInterest) {
  for (std::uint64_t i = 1; i <= 12; i++) publish(i == 9 ? "canary" : "");
  const std::string key = keys::manifest(8);
  bucket_->replace(key, bucket_->find(key).value().substr(1));
  const Host host(bucket_, dir_ / "reader");
  History history(*host.repository, host.store.get());
  CatalogBuilder builder(*host.store, history);
  EXPECT_EQ(builder.find_carrier("canary", 12, {}), 9u);
  builder.read_tags(12, {}, Clock::time_point::max());
  EXPECT_FALSE(builder.find_unreadable(9));
  ASSERT_TRUE(builder.find_unreadable(7));
  EXPECT_EQ(builder.find_unreadable(7)->code(), ErrorCode::corrupt);
}

// It is waited for, as where the history is whole; who waits is told.
TEST_F(FollowTest, WhereABrokenManifestMayCarryATagThatNobodyElseDoesTheTagIsWaitedFor) {
  for (std::uint64_t i = 1; i <= 6 + History::kWalkedMax; i++) publish();
  const std::string key = keys::manifest(8);
  bucket_->replace(key, bucket_->find(key).value().substr(1));
  const auto on = reader("canary");
  EXPECT_EQ(code_of([&] { on->sync.run_once({}); }), ErrorCode::corrupt);
  on->sync.wait_ready(Context{}.within(std::chrono::seconds(60)), {});
  EXPECT_EQ(on->latest(), 0u);
  EXPECT_EQ(on->sync.status().error_code, "corrupt");
}

// ---- against a model ----

/// The expected `latest` after a round.
std::uint64_t expected_latest(const std::vector<std::string>& tags, const Follow& follow) {
  switch (follow.kind) {
    case Follow::Kind::latest:
      return tags.size();
    case Follow::Kind::version:
      return follow.version <= tags.size() ? follow.version : 0;
    case Follow::Kind::tag:
      break;
  }
  const auto found = std::find(tags.rbegin(), tags.rend(), follow.tag);
  return static_cast<std::uint64_t>(tags.rend() - found);
}

TEST_F(FollowTest, HoldsAgainstAModelOverRandomHistories) {
  auto rng = make_rng();
  const std::vector<std::string> names{"", "", "a", "b", "latest", "3"};
  const std::vector<std::string> follows{"latest", "a", "b", "3", "9"};
  std::vector<std::string> tags;
  std::vector<std::unique_ptr<Reader>> readers(follows.size());
  std::vector<std::uint64_t> seen(follows.size());
  for (int step = 0; step < 60; step++) {
    if (rng() % 4 == 0) {
      tags.push_back(names[rng() % names.size()]);
      publish(tags.back());
    }
    const std::size_t i = rng() % follows.size();
    if (!readers[i] || rng() % 5 == 0) {
      readers[i].reset();  // releases the store
      readers[i] = reader(follows[i], "reader-" + std::to_string(i));
      EXPECT_EQ(readers[i]->latest(), seen[i]) << follows[i];
    }
    readers[i]->sync.run_once({});
    const std::uint64_t latest = readers[i]->latest();
    EXPECT_EQ(latest, expected_latest(tags, parse_follow(follows[i]))) << follows[i];
    EXPECT_GE(latest, seen[i]) << follows[i];
    seen[i] = latest;
    if (latest > 0) expect_whole(*readers[i], latest);
    if (follows[i] == "3") {
      EXPECT_LE(readers[i]->versions().size(), 1u);
    }
  }
}

}  // namespace
}  // namespace weightfs::test
