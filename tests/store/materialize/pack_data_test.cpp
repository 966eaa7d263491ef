// Plans that read small packs whole, and what is made of these.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "store/repository/pieces.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/watched_bucket.hpp"

namespace weightfs {
namespace {

using test::BuildOptions;

class PackData : public ::testing::Test {
 protected:
  PackData() {
    builder_.add(model_.tree());
    auto watched = std::make_unique<test::WatchedBucket>(builder_.bucket());
    watched_ = watched.get();
    repository_ = Repository::open(std::move(watched), {});
    history_ = std::make_unique<History>(*repository_, nullptr);
  }

  void add_changed(const BuildOptions& options = {}) {
    model_.nudge_all(0.01, rng_);
    builder_.add(model_.tree(), options);
  }

  Plan plan(std::uint64_t version, PackReads reads = PackReads::with_data) {
    return make_plan(*history_, history_->get(version, {}), {}, {}, {.reads = reads});
  }

  void write(const Plan& plan) {
    WriteOptions options;
    options.directory = directory_ / "written";
    options.spool = directory_.path();
    options.sync = false;
    std::filesystem::create_directories(options.directory);
    write_version(plan, *repository_, options, {}, {});
  }

  void expect_written(const Plan& plan) {
    write(plan);
    EXPECT_TRUE(test::read_tree(directory_ / "written") == builder_.tree(plan.version->number()));
  }

  /// Requests for packs, by key.
  std::map<std::string, int> requests() {
    std::map<std::string, int> count;
    for (const auto& get : watched_->gets("packs/")) count[get.key]++;
    return count;
  }

  static std::uint64_t data_bytes(const Plan& plan) {
    std::uint64_t bytes = 0;
    for (const Step& step : plan.steps) {
      for (const PlannedData& data : step.pack_data) bytes += data.bytes ? data.bytes->size() : 0;
    }
    return bytes;
  }

  test::TempDir directory_;
  test::Random rng_ = test::make_rng();
  test::Model model_ = test::small_model(rng_);
  test::RepositoryBuilder builder_;
  test::WatchedBucket* watched_ = nullptr;
  std::unique_ptr<Repository> repository_;
  std::unique_ptr<History> history_;
};

TEST_F(PackData, OfASmallPackComesWithItsHeader) {
  add_changed({.chunks_per_pack = 2});
  expect_written(plan(2));
  const auto asked = requests();
  EXPECT_GT(asked.size(), 2u);
  for (const auto& [key, count] : asked) EXPECT_EQ(count, 1) << key;
}

TEST_F(PackData, IsFetchedLaterByWhoMayNotNeedIt) {
  add_changed({.chunks_per_pack = 2});
  const Plan made = plan(2, PackReads::headers);
  EXPECT_EQ(data_bytes(made), 0u);
  expect_written(made);
  for (const auto& [key, count] : requests()) EXPECT_EQ(count, 2) << key;
}

TEST_F(PackData, OfALargePackIsFetchedLater) {
  model_.files["large.safetensors"] = {test::random_tensor("l", Dtype::u8, {600'000}, rng_)};
  builder_.add(model_.tree());
  const Plan made = plan(2);
  EXPECT_EQ(data_bytes(made), 0u);
  expect_written(made);
}

TEST_F(PackData, ThatWasDamagedInTransitIsFetchedAgain) {
  add_changed();
  Plan made = plan(2);
  PlannedData& data = made.steps.at(0).pack_data.at(0);
  std::string damaged = *data.bytes;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  data.bytes = std::make_shared<const std::string>(std::move(damaged));
  expect_written(made);
  for (const auto& [key, count] : requests()) EXPECT_EQ(count, 2) << key;
}

TEST_F(PackData, ThatIsDamagedInTheBucketIsNamed) {
  add_changed();
  const std::string key = builder_.key("packs/2/");
  builder_.flip(key, -1);
  const Plan made = plan(2);
  try {
    write(made);
    FAIL() << "a damaged piece was used";
  } catch (const ObjectError& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_EQ(error.key(), key);
  }
}

TEST_F(PackData, ThatWasCutOffIsNamed) {
  add_changed();
  const std::string key = builder_.key("packs/2/");
  builder_.cut(key, 1);
  const Error error = test::error_of([&] { plan(2); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
}

TEST_F(PackData, OfManyVersionsIsBounded) {
  constexpr std::uint64_t kBound = 16u << 20, kEach = 450'000;
  constexpr std::uint64_t kVersions = kBound / kEach + 5;
  for (std::uint64_t i = 0; i < kVersions; i++) {
    model_.files["all.safetensors"] = {test::random_tensor("all", Dtype::u8, {kEach}, rng_)};
    builder_.add(model_.tree(), {.names_snapshot = false});
  }
  const Plan made = plan(builder_.newest());
  ASSERT_EQ(made.steps.size(), kVersions);
  EXPECT_LE(data_bytes(made), kBound);
  EXPECT_GT(data_bytes(made), kBound - 2 * kEach);
  expect_written(made);
}

}  // namespace
}  // namespace weightfs
