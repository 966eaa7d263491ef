// Readers of a repository from which gc removes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "tests/store/retention/gc_world.hpp"

namespace weightfs::test {
namespace {

using std::chrono::seconds;

class GcReaders : public testing::Test {
 protected:
  /// Retires all but the newest version and what it needs, and removes it.
  void remove_old() {
    world_.gc(1, seconds(0));
    EXPECT_FALSE(world_.log().versions.empty());
    EXPECT_EQ(world_.count("packs/2/"), 0u);
  }

  void expect_tree(Host& host, std::uint64_t version) {
    const auto files = host.read_version(version);
    for (const auto& [path, bytes] : world_.builder.tree(version)) {
      ASSERT_TRUE(files.contains(path));
      EXPECT_TRUE(files.at(path) == bytes) << path;
    }
  }

  Random rng_{seed()};
  // So large that a few deltas, with their requests, are cheaper than a snapshot.
  GcWorld world_{rng_, 2'000'000};
  TempDir directory_;
};

TEST_F(GcReaders, ARetiredVersionIsAnErrorThatSaysSo) {
  world_.publish_many(6, 3);
  remove_old();
  Host host(world_.open({}), directory_.path() / "store");
  const Error error = error_of([&] { host.read_version(2); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  const std::string message = error.what();
  EXPECT_NE(message.find("version 2 was removed by gc at 2026-"), std::string::npos) << message;
  EXPECT_NE(message.find("the oldest version that is left is 6"), std::string::npos) << message;
  expect_tree(host, 6);
}

TEST_F(GcReaders, WhatIsGoneWithoutARecordIsNotCalledRetired) {
  world_.publish_many(6, 3);
  remove_old();
  world_.bucket()->erase(world_.builder.key("snapshots/6/", "/.hashes"));
  Host host(world_.open({}), directory_.path() / "store");
  const std::string message = error_of([&] { host.read_version(6); }).what();
  EXPECT_EQ(message.find("gc"), std::string::npos) << message;
}

TEST_F(GcReaders, WhoMeetsARemovedObjectPlansAgain) {
  world_.publish_many(6, 4);
  std::atomic<int> reads = 0, log_reads = 0;
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.key.starts_with("gc/")) log_reads++;
    // The first read is of the header, for the plan; what follows is the data.
    if (call.kind != "get" || !call.key.starts_with("packs/2/")) return;
    if (++reads == 2) remove_old();
  };
  Host host(world_.open(hooks), directory_.path() / "store");
  expect_tree(host, 1);
  expect_tree(host, 6);  // planned by the deltas from 1, made from the snapshot of 4
  EXPECT_GE(reads, 2);
  EXPECT_EQ(log_reads, 0);  // there was another way
}

TEST_F(GcReaders, AHostThatIsFarBehindGoesOnFromASnapshot) {
  world_.publish();
  std::atomic<int> log_reads = 0;
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.key.starts_with("gc/")) log_reads++;
  };
  Host host(world_.open(hooks), directory_.path() / "store");
  expect_tree(host, 1);
  // Further than one pass of deltas goes, and all of them are retired.
  const std::uint64_t newest = kStepsPerPass + 6;
  while (world_.builder.newest() < newest) world_.publish(world_.builder.newest() + 3 == newest);
  remove_old();
  expect_tree(host, newest);
  EXPECT_EQ(log_reads, 0);  // so many requests would have been dearer
}

// Deltas that seem cheaper than the snapshot are gone in several passes, whose first one ends at a
// version that was retired.
TEST_F(GcReaders, AStopOnTheWayThatWasRetiredIsGoneAround) {
  // A request for each file makes a snapshot dear, and costs no memory.
  Tree tree;
  for (int i = 0; i < 300; i++) {
    tree[fmt::format("{:03}.safetensors", i)] =
        make_safetensors({random_tensor(fmt::format("w{}", i), Dtype::bf16, {8}, rng_)});
  }
  RepositoryBuilder& builder = world_.builder;
  const std::uint64_t newest = kStepsPerPass + 6;
  const auto publish = [&] {
    tree.begin()->second.back() = static_cast<char>(builder.newest());
    builder.add(tree, {.snapshot = builder.newest() + 4 == newest});
  };
  publish();
  std::atomic<int> log_reads = 0;
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.key.starts_with("gc/")) log_reads++;
  };
  Host host(world_.open(hooks), directory_.path() / "store");
  expect_tree(host, 1);
  while (builder.newest() < newest) publish();
  remove_old();
  EXPECT_EQ(world_.count("snapshots/"), 301u);
  EXPECT_EQ(log_reads, 0);
  expect_tree(host, newest);
  EXPECT_GT(log_reads, 0) << "the snapshot was taken at once: this test shows nothing";
}

// ---- skips that gc left instead of deltas ----

class GcSkipReaders : public GcReaders {
 protected:
  static constexpr std::uint64_t kKept = 8, kNewest = 18;

  void SetUp() override {
    world_.publish_many(kNewest);
    CollectOptions options = GcWorld::options_for(1, seconds(0));
    options.keep.every = kKept;
    EXPECT_EQ(world_.gc(options).made, (std::vector<VersionPair>{{1, 8}, {8, 16}}));
    EXPECT_EQ(world_.log().needs.size(), 2u);
    EXPECT_EQ(world_.count("packs/"), kNewest - 16);
  }

  /// By a host that has nothing.
  void expect_kept() {
    for (const std::uint64_t version : {kNewest, std::uint64_t{16}, kKept}) {
      TempDir directory;
      BucketHooks hooks;
      hooks.before = [&](const BucketCall& call) {
        if (call.key.starts_with("gc/")) log_reads_++;
      };
      Host host(world_.open(hooks), directory.path() / "store");
      expect_tree(host, version);
    }
  }

  std::atomic<int> log_reads_ = 0;
};

TEST_F(GcSkipReaders, AListLeadsToThem) { expect_kept(); }

TEST_F(GcSkipReaders, WhoMayNotListFindsThemInTheLog) {
  world_.bucket()->fail_list(ErrorCode::permission);
  expect_kept();
  EXPECT_GT(log_reads_, 0);
  EXPECT_GT(world_.bucket()->failures(), 0u);
}

TEST_F(GcSkipReaders, WhoseListLagsFindsThemInTheLog) {
  world_.bucket()->hide_from_list("skips/");
  expect_kept();
  EXPECT_GT(log_reads_, 0);
}

TEST_F(GcSkipReaders, ALogThatCannotBeReadIsTheErrorOfTheDeltas) {
  world_.bucket()->fail_list(ErrorCode::permission);
  world_.builder.flip(keys::gc_record(1), 40);
  Host host(world_.open({}), directory_.path() / "store");
  const Error error = error_of([&] { host.read_version(kNewest); });
  EXPECT_EQ(error.code(), ErrorCode::not_found) << error.what();
  EXPECT_NE(std::string(error.what()).find("packs/"), std::string::npos) << error.what();
}

TEST_F(GcReaders, NobodyElseReadsTheLog) {
  world_.publish_many(6, 3);
  std::atomic<int> log_reads = 0;
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.key.starts_with("gc/")) log_reads++;
  };
  Host host(world_.open(hooks), directory_.path() / "store");
  expect_tree(host, 5);
  remove_old();
  world_.publish_many(2);
  EXPECT_EQ(host.history.refresh(5, {}), 8u);
  expect_tree(host, 7);
  expect_tree(host, 8);
  EXPECT_EQ(log_reads, 0);
}

}  // namespace
}  // namespace weightfs::test
