// Materialize: versions into a store.
#include <gtest/gtest.h>

#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/os/lease.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/told_guard.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::error_of;
using test::flip_byte;
using test::Host;
using test::inode_of;
using test::mentions;
using test::Model;
using test::random_tensor;
using test::read_tree;
using test::RepositoryBuilder;
using test::small_model;
using test::TempDir;

// ---- into a store ----

class MaterializeIntoStore : public ::testing::Test {
 protected:
  void add_versions(int count) {
    for (int i = 0; i < count; i++) {
      if (builder_.newest() > 0) model_.nudge_all(0.01, rng_);
      builder_.add(model_.tree());
    }
  }

  void bring(std::uint64_t version) { materialize(*host_.store, host_.history, version, {}, {}); }

  void expect_version(std::uint64_t version) {
    EXPECT_TRUE(host_.store->images().is_complete(version));
    EXPECT_EQ(read_tree(host_.store->images().image_directory(version)), builder_.tree(version));
  }

  void expect_nothing_of(std::uint64_t version) {
    EXPECT_FALSE(host_.store->images().is_complete(version));
    EXPECT_FALSE(filesystem::exists(host_.store->images().image_directory(version)));
    EXPECT_TRUE(filesystem::is_empty(host_.store->temporary_directory()));
  }

  /// Damages a version's image without the store's knowledge.
  void rot(std::uint64_t version) {
    const auto path = host_.store->images().image_directory(version) / "a.safetensors";
    flip_byte(path, filesystem::file_size(path) - 5);
  }

  TempDir directory_;
  test::Random rng_ = test::make_rng();
  Model model_ = small_model(rng_);
  RepositoryBuilder builder_;
  Host host_{builder_.bucket(), directory_ / "store", {1u << 30, 0}};
};

TEST_F(MaterializeIntoStore, BringsAVersionInAndDoesItOnlyOnce) {
  add_versions(2);
  bring(1);
  expect_version(1);
  bring(2);
  expect_version(2);
  EXPECT_EQ(host_.store->images().chunk_hashes(2),
            base_of(*host_.store, host_.history, 2, {}).hashes);
  const ino_t inode = inode_of(host_.store->images().image_directory(2) / "a.safetensors");
  builder_.bucket()->fail_key("", ErrorCode::unavailable);
  bring(2);
  EXPECT_EQ(inode_of(host_.store->images().image_directory(2) / "a.safetensors"), inode);
}

TEST_F(MaterializeIntoStore, LetsGoOfItsBases) {
  add_versions(2);
  bring(1);
  bring(2);
  EXPECT_TRUE(nobody_reads(host_.store->images().image_directory(1)));
  EXPECT_TRUE(nobody_reads(host_.store->images().image_directory(2)));
}

TEST_F(MaterializeIntoStore, LeavesNothingAfterAFailureAndWorksOnceItIsMended) {
  add_versions(2);
  bring(1);
  const std::string key = builder_.key("packs/2/");
  const std::string whole = builder_.bucket()->find(key).value();
  builder_.flip(key, -1);
  const Error error = error_of([&] { bring(2); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_TRUE(mentions(error, key)) << error.what();
  expect_nothing_of(2);
  expect_version(1);
  builder_.bucket()->replace(key, whole);
  bring(2);
  expect_version(2);
}

TEST_F(MaterializeIntoStore, LeavesNothingAfterAFailureWhileItWrites) {
  add_versions(1);
  const std::string key = builder_.key("snapshots/1/", "b.safetensors");
  builder_.flip(key, -1);
  EXPECT_EQ(error_of([&] { bring(1); }).code(), ErrorCode::corrupt);
  expect_nothing_of(1);
}

TEST_F(MaterializeIntoStore, AVersionThatDoesNotExistIsNotFound) {
  add_versions(1);
  EXPECT_EQ(error_of([&] { bring(2); }).code(), ErrorCode::not_found);
}

TEST_F(MaterializeIntoStore, HealsARottenBase) {
  add_versions(3);
  bring(1);
  bring(2);
  rot(2);
  bring(3);
  expect_version(3);
  EXPECT_FALSE(host_.store->images().is_complete(2));
  expect_version(1);
  bring(2);
  expect_version(2);
}

TEST_F(MaterializeIntoStore, GoesToTheBucketWhenEveryBaseIsRotten) {
  add_versions(3);
  bring(1);
  bring(2);
  rot(1);
  rot(2);
  bring(3);
  expect_version(3);
  EXPECT_EQ(host_.store->images().complete_versions(), std::vector<std::uint64_t>{3});
}

// `latest`, say: a reader gets right bytes, or none until it is made again.
TEST_F(MaterializeIntoStore, HidesARottenVersionThatMustStay) {
  add_versions(2);
  bring(1);
  rot(1);
  unsigned told = 0;
  host_.store->eviction().set_changed([&] { told++; });
  const auto latest = host_.store->eviction().reserve(1, Eviction::Claim::stays, {});
  bring(2);
  expect_version(2);
  EXPECT_FALSE(host_.store->images().is_complete(1));
  EXPECT_GT(told, 0u);
  bring(1);
  expect_version(1);
  host_.store->eviction().set_changed({});
}

TEST_F(MaterializeIntoStore, HidesARottenVersionThatIsInUse) {
  add_versions(2);
  bring(1);
  rot(1);
  std::vector<std::uint64_t> asked;
  const test::ToldGuard guard(host_.store->eviction(), {.release = [&](std::uint64_t version) {
                                asked.push_back(version);
                                return false;
                              }});
  bring(2);
  expect_version(2);
  EXPECT_EQ(asked, std::vector<std::uint64_t>{1});
  EXPECT_FALSE(host_.store->images().is_complete(1));
}

TEST_F(MaterializeIntoStore, GoesALongWayInSeveralPasses) {
  model_ = Model();
  model_.files["a.safetensors"] = {random_tensor("x", Dtype::u8, {5000}, rng_)};
  add_versions(static_cast<int>(kStepsPerPass) + 5);
  bring(builder_.newest());
  expect_version(builder_.newest());
  EXPECT_TRUE(host_.store->images().is_complete(1 + kStepsPerPass));
  EXPECT_EQ(host_.store->images().complete_versions().size(), 2u);
}

TEST_F(MaterializeIntoStore, RefusesWhatHasNoRoom) {
  add_versions(1);
  Host tight{builder_.bucket(), directory_ / "tight", {1000, 0}};
  const Error error = error_of([&] { materialize(*tight.store, tight.history, 1, {}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::no_space) << error.what();
  EXPECT_FALSE(filesystem::exists(tight.store->images().image_directory(1)));
}

}  // namespace
}  // namespace weightfs
