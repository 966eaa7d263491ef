// Readers of a repository from which gc removes.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <span>
#include <string>

#include "store/inspect/export.hpp"
#include "store/streaming/partial_images.hpp"
#include "store/streaming/remote_files.hpp"
#include "tests/store/retention/gc_world.hpp"
#include "tests/support/eventually.hpp"

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
    // The first read is of the header, for the plan; what follows is the data: a host that keeps
    // files by name does not read both with one request.
    if (call.kind != "get" || !call.key.starts_with("packs/2/")) return;
    if (++reads == 2) remove_old();
  };
  Host host(world_.open(hooks), directory_.path() / "store");
  expect_tree(host, 1);
  materialize(*host.store, host.history, 6, {}, {}, kernels::make_cpu_coder(), {"*"});
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

TEST_F(GcReaders, WhoExportsAndMeetsARemovedObjectPlansAgain) {
  world_.publish_many(9);
  std::atomic<int> reads = 0;
  BucketHooks hooks;
  hooks.before = [&](const BucketCall& call) {
    if (call.kind != "get" || !call.key.starts_with("packs/2/") || ++reads != 2) return;
    CollectOptions options = GcWorld::options_for(1, seconds(0));
    options.keep.every = 8;
    world_.gc(options);  // by a skip from 1 to 8
    EXPECT_EQ(world_.count("packs/"), 1u);
  };
  const auto repository = world_.open(hooks);
  History history(*repository, nullptr);
  export_version(history, 8, directory_.path() / "out", {}, {});
  EXPECT_EQ(read_tree(directory_.path() / "out"), world_.builder.tree(8));
  EXPECT_GE(reads, 2);
}

/// What removes the deltas from 2 to 8, which a skip replaces, when the second of them is read.
class GcWhileReading : public GcReaders {
 protected:
  GcWhileReading() {
    world_.publish_many(9);
    hooks_.before = [this](const BucketCall& call) {
      if (call.kind != "get" || !call.key.starts_with("packs/2/") || ++reads_ != 2) return;
      CollectOptions options = GcWorld::options_for(1, seconds(0));
      options.keep.every = 8;
      world_.gc(options);
      EXPECT_EQ(world_.count("packs/"), 1u);
    };
  }

  std::atomic<int> reads_ = 0;
  BucketHooks hooks_;
};

TEST_F(GcWhileReading, WhoReadsAFileThatIsNotKeptPlansAgain) {
  Host host(world_.open(hooks_), directory_.path() / "store");
  RemoteFiles files(*host.store, host.history, {});
  for (const auto& [path, bytes] : world_.builder.tree(8)) {
    if (!path.ends_with(".safetensors")) continue;
    std::string found(bytes.size(), '\0');
    const auto into = std::as_writable_bytes(std::span(found));
    EXPECT_EQ(files.read(8, path, 0, into, {}), bytes.size());
    EXPECT_TRUE(found == bytes) << path;
  }
  EXPECT_GE(reads_, 2);
}

TEST_F(GcWhileReading, AVersionThatStreamsInPlansAgain) {
  Host host(world_.open(hooks_), directory_.path() / "store");
  PartialImages images(*host.store, host.history, {});
  images.begin(8, {});
  EXPECT_TRUE(eventually([&] { return host.store->images().is_complete(8); }));
  EXPECT_GE(reads_, 2);
  expect_tree(host, 8);
}

// Deltas that seem cheaper than the snapshot are gone in several passes, whose first one ends at a
// version that was retired.
TEST_F(GcReaders, AStopOnTheWayThatWasRetiredIsGoneAround) {
  // Most deltas have no pack, so that one costs a request, and 8 MB more than all of them.
  std::vector<TestTensor> tensors{random_tensor("w", Dtype::bf16, {4'000'000}, rng_)};
  RepositoryBuilder& builder = world_.builder;
  const std::uint64_t newest = kStepsPerPass + 6;
  const auto publish = [&] {
    if (builder.newest() % 16 == 8) tensors[0].data[0] ^= std::byte{1};
    builder.add({{"model.safetensors", make_safetensors(tensors)}},
                {.snapshot = builder.newest() + 4 == newest});
    if (builder.newest() > 2) builder.forget_tree(builder.newest() - 1);
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
  EXPECT_EQ(world_.count("snapshots/"), 2u);
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

// Not of a delta that gc removed on purpose.
TEST_F(GcSkipReaders, TheErrorNamesADamagedOneThatIsNeeded) {
  const std::string record = keys::skip_record({8, 16});
  const std::string good = *world_.bucket()->find(record);
  const std::string pack = world_.builder.key(record.substr(0, record.size() - 5) + "/");
  Host host(world_.open({}), directory_.path() / "store");
  for (const auto& [damaged, offset] :
       {std::pair(record, 40), std::pair(pack, 20), std::pair(pack, -3)}) {
    world_.builder.flip(damaged, offset);
    for (int tries = 0; tries < 2; tries++) {
      const Error error = error_of([&] { host.read_version(kNewest); });
      EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
      EXPECT_NE(std::string(error.what()).find(damaged), std::string::npos) << error.what();
      TempDir elsewhere;
      History history(*host.repository, nullptr);
      const Error exporting =
          error_of([&] { export_version(history, 16, elsewhere / "out", {}, {}); });
      EXPECT_EQ(exporting.code(), ErrorCode::corrupt) << exporting.what();
      EXPECT_NE(std::string(exporting.what()).find(damaged), std::string::npos) << exporting.what();
    }
    world_.builder.flip(damaged, offset);
  }
  world_.bucket()->erase(record);
  EXPECT_NE(std::string(error_of([&] { host.read_version(kNewest); }).what()).find(record),
            std::string::npos);
  world_.bucket()->replace(record, good);
  expect_tree(host, kNewest);  // once it is mended
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
