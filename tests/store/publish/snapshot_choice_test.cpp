#include "store/publish/snapshot_choice.hpp"

#include <gtest/gtest.h>

#include <string>

#include "store/repository/skips.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/store/publish/publish_fixture.hpp"

namespace weightfs::test {
namespace {

class SnapshotChoiceTest : public testing::Test {
 protected:
  void add(std::uint64_t versions, double share = 0.001) {
    for (std::uint64_t i = 0; i < versions; i++) {
      nudge(tensor_, share, rng_);
      builder_.add({{"m.safetensors", make_safetensors({tensor_})}});
    }
  }
  bool is_due(std::uint64_t version, std::uint64_t version_bytes, SnapshotPolicy policy = {}) {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    return is_snapshot_due(history, version, version_bytes, policy, {});
  }
  /// A skip that LIST shows with this size.
  void put_skip_of(const VersionPair& versions, std::size_t bytes) {
    builder_.bucket()->replace(keys::skip_record(versions), "");
    builder_.bucket()->replace(keys::skip_pack(versions, std::string(32, 'a') + "-0"),
                               std::string(bytes, 'x'));
  }
  std::uint64_t sum_of_deltas() {
    std::uint64_t bytes = 0;
    for (const auto& [key, object] : builder_.bucket()->objects()) {
      if (key.starts_with(keys::kPacks)) bytes += object.size();
    }
    return bytes;
  }

  Random rng_ = make_rng();
  TestTensor tensor_ = random_tensor("x", Dtype::bf16, {1000}, rng_);
  RepositoryBuilder builder_;
};

TEST_F(SnapshotChoiceTest, ByNumber) {
  add(11);
  EXPECT_TRUE(is_due(12, 1u << 30, {.every = 4}));
  EXPECT_TRUE(is_due(12, 1u << 30, {.every = 12}));
  EXPECT_FALSE(is_due(12, 1u << 30, {.every = 5}));
  EXPECT_FALSE(is_due(12, 1u << 30));
  EXPECT_FALSE(is_due(1, 1u << 30, {.every = 1})) << "it has one";
}

TEST_F(SnapshotChoiceTest, WithoutSkipsTheDeltasDecide) {
  add(63);
  const std::uint64_t sum = sum_of_deltas();
  EXPECT_FALSE(is_due(64, sum + 1));
  EXPECT_TRUE(is_due(64, sum));
  add(64);
  EXPECT_FALSE(is_due(128, sum_of_deltas() + 1));
  EXPECT_TRUE(is_due(128, sum_of_deltas()));
}

TEST_F(SnapshotChoiceTest, OnlyMultiplesOf64) {
  add(65);
  EXPECT_FALSE(is_due(66, 1));
}

TEST_F(SnapshotChoiceTest, TheNewestSkipFromTheSnapshotDecides) {
  add(127);
  put_skip_of({1, 96}, 5000);
  put_skip_of({1, 112}, 1001);
  put_skip_of({64, 112}, 9999);  // from another version
  EXPECT_TRUE(is_due(128, 5000)) << "1001 of 5000";
  EXPECT_FALSE(is_due(128, 5005)) << "not more than a fifth";
  EXPECT_FALSE(is_due(128, 1u << 30));
  EXPECT_TRUE(is_due(128, 2000)) << "however large the deltas are";
}

TEST_F(SnapshotChoiceTest, OldSkipsSayLittle) {
  add(127);
  put_skip_of({1, 48}, 10);
  EXPECT_TRUE(is_due(128, sum_of_deltas()));
}

TEST_F(SnapshotChoiceTest, ABucketThatMayNotBeListedHasNoSkips) {
  add(127);
  put_skip_of({1, 112}, 1u << 20);
  builder_.bucket()->fail_list(ErrorCode::permission);
  EXPECT_FALSE(is_due(128, sum_of_deltas() + 1));
  builder_.bucket()->fail_list(ErrorCode::unavailable);
  EXPECT_FALSE(is_due(128, sum_of_deltas() + 1));
}

TEST_F(SnapshotChoiceTest, TheLastSnapshotCounts) {
  add(99);
  nudge(tensor_, 0.001, rng_);
  BuildOptions options;
  options.snapshot = true;
  builder_.add({{"m.safetensors", make_safetensors({tensor_})}}, options);
  add(27);
  put_skip_of({1, 112}, 1u << 20);
  put_skip_of({100, 112}, 10);
  EXPECT_FALSE(is_due(128, 1000));
}

/// No such version could be published.
TEST_F(SnapshotChoiceTest, IsDueWhereTheWayFromTheLastOneIsDamaged) {
  add(63);
  builder_.bucket()->replace(keys::manifest(20), "no manifest");
  EXPECT_TRUE(is_due(64, 1u << 30));
  EXPECT_TRUE(is_due(64, 1u << 30, {.asks_bucket = false}));
  builder_.bucket()->fail_key(keys::manifest(20), ErrorCode::unavailable);
  EXPECT_THROW(is_due(64, 1u << 30), Error);
}

class PublishSnapshotsTest : public PublishTest {};

TEST_F(PublishSnapshotsTest, EveryThirdVersion) {
  Random rng = make_rng();
  Model model = small_model(rng);
  for (std::uint64_t version = 1; version <= 6; version++) {
    PublishOptions options;
    options.directory = directory_of(model.tree());
    options.snapshots.every = 3;
    EXPECT_EQ(publisher().publish(options).version, version);
    EXPECT_EQ(manifest_of(version).snapshot.has_value(), version == 1 || version % 3 == 0);
    EXPECT_EQ(manifest_of(version).delta.has_value(), version > 1) << "its delta too";
    model.nudge_all(0.01, rng);
  }
  PublishOptions back;
  back.wishes.rollback = 2;
  back.snapshots.every = 1;
  EXPECT_EQ(publisher().publish(back).version, 7u);
  EXPECT_FALSE(manifest_of(7).snapshot) << "a rollback has none";
  expect_sound();
}

/// Every element changes in every version: the deltas soon have as many bytes as a snapshot.
TEST_F(PublishSnapshotsTest, Version64GetsOneWhenTheDeltasAreAsLarge) {
  Random rng = make_rng();
  Model model;
  for (std::uint64_t version = 1; version <= 65; version++) {
    model.files["m.safetensors"] = {random_tensor("x", Dtype::bf16, {1000}, rng)};
    EXPECT_EQ(publisher().publish(directory_of(model.tree())).version, version);
    EXPECT_EQ(manifest_of(version).snapshot.has_value(), version == 1 || version == 64);
  }
  EXPECT_TRUE(manifest_of(64).delta) << "its delta too";
}

}  // namespace
}  // namespace weightfs::test
