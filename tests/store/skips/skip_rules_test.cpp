#include "store/skips/skip_rules.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "store/repository/skips.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {
namespace {

using Pairs = std::vector<VersionPair>;

TEST(SkipRulesTest, EightsSixtyFoursAndTheNewestSnapshot) {
  EXPECT_EQ(wanted_skips(8, 1), Pairs{}) << "8 - 8 is no version";
  EXPECT_EQ(wanted_skips(16, 1), (Pairs{{8, 16}, {1, 16}}));
  EXPECT_EQ(wanted_skips(17, 1), Pairs{});
  EXPECT_EQ(wanted_skips(24, 1), (Pairs{{16, 24}}));
  EXPECT_EQ(wanted_skips(64, 1), (Pairs{{56, 64}, {1, 64}}));
  EXPECT_EQ(wanted_skips(128, 1), (Pairs{{120, 128}, {64, 128}, {1, 128}}));
  EXPECT_EQ(wanted_skips(128, 64), (Pairs{{120, 128}, {64, 128}})) << "no pair twice";
  EXPECT_EQ(wanted_skips(80, 72), (Pairs{{72, 80}}));
  EXPECT_EQ(wanted_skips(144, 128), (Pairs{{136, 144}, {128, 144}}));
}

TEST(SkipRulesTest, NoneFromASnapshotToOne) {
  EXPECT_EQ(wanted_skips(64, 64), (Pairs{{56, 64}}));
  EXPECT_EQ(wanted_skips(128, 128), (Pairs{{120, 128}, {64, 128}}));
}

TEST(SkipRulesTest, NoneOverFewerThanTwoVersions) {
  EXPECT_EQ(wanted_skips(16, 15), (Pairs{{8, 16}}));
  EXPECT_EQ(wanted_skips(16, 14), (Pairs{{14, 16}, {8, 16}}));
  EXPECT_EQ(wanted_skips(16, 0), (Pairs{{8, 16}})) << "no snapshot is known";
}

TEST(SkipRulesTest, AllPairsAreLegalWhateverTheSnapshotIs) {
  for (std::uint64_t to = 1; to <= 300; to++) {
    for (std::uint64_t snapshot = 0; snapshot <= to; snapshot++) {
      const Pairs skips = wanted_skips(to, snapshot);
      EXPECT_EQ(std::set(skips.begin(), skips.end()).size(), skips.size());
      for (const VersionPair& skip : skips) {
        EXPECT_GE(skip.from, 1u);
        EXPECT_GE(skip.to, skip.from + 2);
        EXPECT_EQ(skip.to, to);
      }
    }
  }
}

/// The last snapshot may be thousands of versions ago, and this is asked for each new version.
TEST(SkipRulesTest, TheSnapshotBeforeIsFoundWithoutTheManifestsBetween) {
  Random rng = make_rng();
  TestTensor tensor = random_tensor("x", Dtype::bf16, {100}, rng);
  RepositoryBuilder builder;
  for (std::uint64_t version = 1; version <= 80; version++) {
    nudge(tensor, 0.01, rng);
    BuildOptions options;
    options.snapshot = version == 10;
    builder.add({{"m.safetensors", make_safetensors({tensor})}}, options);
  }
  const auto skips = [&](const GcLog& retired) {
    const auto repository = builder.open();
    History history(*repository, nullptr);
    const std::uint64_t calls = builder.bucket()->calls();
    Pairs pairs = skips_by_rule(history, 80, 8, retired, {});
    EXPECT_LE(builder.bucket()->calls() - calls, 8u + 3) << "the window, and the way back";
    return pairs;
  };
  EXPECT_EQ(skips({}), (Pairs{{72, 80}, {10, 80}}));
  GcLog retired;
  retired.snapshots.add(10);
  EXPECT_EQ(skips(retired), (Pairs{{72, 80}, {1, 80}}));
}

class MissingSkipsTest : public testing::Test {
 protected:
  void add(std::uint64_t versions) {
    for (std::uint64_t i = 0; i < versions; i++) {
      nudge(tensor_, 0.01, rng_);
      builder_.add({{"m.safetensors", make_safetensors({tensor_})}});
    }
  }
  Pairs missing(std::uint64_t count) {
    const auto repository = builder_.open();
    History history(*repository, nullptr);
    return missing_skips(history, builder_.newest(), count, retired_, {});
  }
  void put(const VersionPair& versions) {
    const auto repository = builder_.open();
    SkipRecord record;
    record.repository = repository->id();
    record.versions = versions;
    record.nonce = std::string(32, 'a');
    put_skip(*repository, record, {});
  }

  Random rng_ = make_rng();
  TestTensor tensor_ = random_tensor("x", Dtype::bf16, {100}, rng_);
  RepositoryBuilder builder_;
  GcLog retired_;
};

TEST_F(MissingSkipsTest, TheOldestVersionFirstAndNoneThatIsThere) {
  add(33);
  EXPECT_EQ(missing(100), (Pairs{{1, 16}, {8, 16}, {16, 24}, {1, 32}, {24, 32}}));
  EXPECT_EQ(missing(9), (Pairs{{1, 32}, {24, 32}}));
  EXPECT_EQ(missing(1), Pairs{});
  put({1, 32});
  put({8, 16});
  EXPECT_EQ(missing(100), (Pairs{{1, 16}, {16, 24}, {24, 32}}));
}

TEST_F(MissingSkipsTest, NoneLeadsOverAChangeOfTheTensorTable) {
  add(20);
  tensor_ = random_tensor("x", Dtype::bf16, {120}, rng_);
  add(14);
  EXPECT_EQ(missing(100), (Pairs{{1, 16}, {8, 16}, {24, 32}}));
}

TEST_F(MissingSkipsTest, SnapshotsAreThoseOfManifests) {
  add(9);
  nudge(tensor_, 0.01, rng_);
  BuildOptions options;
  options.snapshot = true;
  builder_.add({{"m.safetensors", make_safetensors({tensor_})}}, options);
  add(22);
  EXPECT_EQ(missing(100), (Pairs{{8, 16}, {10, 16}, {16, 24}, {10, 32}, {24, 32}}));
  EXPECT_EQ(missing(2), (Pairs{{10, 32}, {24, 32}})) << "the snapshot is older than what is asked";
}

TEST_F(MissingSkipsTest, NoneThatNeedsWhatWasRetired) {
  add(33);
  for (std::uint64_t version = 1; version <= 9; version++) retired_.versions.add(version);
  retired_.snapshots.add(1);
  EXPECT_EQ(missing(100), (Pairs{{16, 24}, {24, 32}}));
}

}  // namespace
}  // namespace weightfs::test
