// Materialize: versions from images and the store's patches, without the bucket.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/local/sync_images.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/materialize.hpp"
#include "store/materialize/patched_base.hpp"
#include "store/materialize/take_patches.hpp"
#include "store/patches/fold_spans.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"
#include "tests/support/store_patches.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

constexpr std::chrono::microseconds kStep{20};

class MaterializePatches : public ::testing::Test {
 protected:
  void SetUp() override {
    builder_.add(model_.tree());
    bring(1);
  }

  /// Publishes the model, brings it, and takes patches from the version before.
  void add_version() {
    model_.nudge_all(0.01, rng_);
    add_changed_version();
  }
  void add_changed_version() {
    const std::uint64_t version = builder_.add(model_.tree());
    bring(version);
    take(version - 1, version);
  }
  void take(std::uint64_t from, std::uint64_t to) {
    take_between(*host_->store, host_->history, from, to);
  }

  void bring(std::uint64_t version) { materialize(*host_->store, host_->history, version, {}, {}); }
  bool rebuild(std::uint64_t version, VersionWatch* watch = nullptr) {
    return materialize_from_patches(*host_->store, host_->history, version, {}, {},
                                    kernels::make_cpu_coder(), {}, watch);
  }
  void forget(std::uint64_t version) { ASSERT_TRUE(host_->store->evictor().evict(version)); }
  void keep_only(std::uint64_t version) { keep_only_images(*host_->store, version); }
  /// From now on whatever asks the bucket fails.
  void lose_bucket() { builder_.bucket()->fail_key("", ErrorCode::unavailable); }

  void expect_version(std::uint64_t version) {
    ASSERT_TRUE(host_->store->images().is_complete(version));
    EXPECT_EQ(read_tree(host_->store->images().image_directory(version)), builder_.tree(version));
  }
  void damage(const PatchSpan& span) { damage_span(*host_->store, span); }
  std::size_t span_count() { return host_->store->patches().list().size(); }

  TempDir directory_;
  Random rng_ = make_rng();
  Model model_ = small_model(rng_);
  RepositoryBuilder builder_;
  std::unique_ptr<Host> host_ =
      std::make_unique<Host>(builder_.bucket(), directory_ / "store", StoreLimits{1u << 30, 0});
};

TEST_F(MaterializePatches, AVersionIsMadeOfTheBaseAndItsPatchesWithoutTheBucket) {
  for (int i = 0; i < 5; i++) add_version();
  keep_only(1);
  lose_bucket();
  VersionWatch watch(6);
  EXPECT_TRUE(rebuild(6, &watch));
  expect_version(6);
  EXPECT_EQ(watch.timing.base, 1u);
  EXPECT_EQ(watch.timing.patches, 5u);
  EXPECT_EQ(watch.timing.deltas, 0u);
  const BuildTiming work = watch.meter->read();
  EXPECT_EQ(work.fetched_bytes, 0u);
  EXPECT_GT(work.patched_bytes, 0u);
  EXPECT_GT(work.patch.count(), 0);
}

TEST_F(MaterializePatches, ThePathMayLeadBack) {
  for (int i = 0; i < 3; i++) add_version();
  keep_only(4);
  lose_bucket();
  for (const std::uint64_t version : {1U, 2U, 3U}) {
    EXPECT_TRUE(rebuild(version));
    expect_version(version);
  }
}

TEST_F(MaterializePatches, MaterializeUsesThemAndTheBucketOnlyForWhatIsNewer) {
  for (int i = 0; i < 3; i++) add_version();
  model_.nudge_all(0.01, rng_);
  builder_.add(model_.tree());  // no patches of it
  keep_only(1);
  for (const std::uint64_t version : {2U, 3U, 4U}) {
    builder_.bucket()->remove(builder_.key("packs/" + std::to_string(version) + "/"), {});
  }
  EXPECT_FALSE(rebuild(5)) << "nothing leads to it but the bucket";
  bring(5);
  expect_version(5);
}

// A thread that was stopped between taking its number and its turn once left the others waiting for
// ever.  That takes bad luck: here it is enough that each moment ends it, and says what was
// stopped.
TEST_F(MaterializePatches, TakingThemEndsWheneverItIsStopped) {
  add_version();
  const Base before = base_of(*host_->store, host_->history, 1, {});
  const Base after = base_of(*host_->store, host_->history, 2, {});
  const SpanEnds ends = span_between(before, after).value();
  const PatchTable& table = host_->store->patches();
  bool is_taken = false;
  for (auto time = std::chrono::microseconds(0); !is_taken; time = time * 3 / 2 + kStep) {
    const Context context = Context{}.within(time);
    try {
      (void)take_patches(table, ends, before, after, context);
      is_taken = true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timed_out) << error.what();
      EXPECT_TRUE(std::string(error.what()).ends_with("taking patches")) << error.what();
    }
  }
}

TEST_F(MaterializePatches, FoldedPatchesComeToTheSame) {
  for (int i = 0; i < 19; i++) add_version();
  FoldLimits limits;
  limits.history = 1;
  const FoldedAll folded = fold_all(host_->store->patches(), limits, {});
  EXPECT_GT(folded.folds, 0u);
  keep_only(1);
  lose_bucket();
  EXPECT_TRUE(rebuild(20));
  expect_version(20);
}

TEST_F(MaterializePatches, HeadersMayDiffer) {
  model_.metadata["step"] = "a longer header than before";
  add_version();
  model_.metadata.clear();
  add_version();
  keep_only(1);
  lose_bucket();
  for (const std::uint64_t version : {2U, 3U}) {
    EXPECT_TRUE(rebuild(version));
    expect_version(version);
  }
}

TEST_F(MaterializePatches, AFileThatDidNotChangeIsALink) {
  nudge(model_.files["a.safetensors"][0], 0.01, rng_);
  add_changed_version();
  keep_only(1);
  lose_bucket();
  EXPECT_TRUE(rebuild(2));
  expect_version(2);
  const auto directory = [&](std::uint64_t version) {
    return host_->store->images().image_directory(version);
  };
  EXPECT_EQ(inode_of(directory(1) / "b.safetensors"), inode_of(directory(2) / "b.safetensors"));
  EXPECT_EQ(inode_of(directory(1) / "config.json"), inode_of(directory(2) / "config.json"));
  EXPECT_NE(inode_of(directory(1) / "a.safetensors"), inode_of(directory(2) / "a.safetensors"));
}

TEST_F(MaterializePatches, ASmallFileThatDiffersTakesTheBucket) {
  model_.blobs["config.json"] = R"({"model_type":"other"})";
  add_version();
  keep_only(1);
  EXPECT_FALSE(rebuild(2));
  EXPECT_FALSE(host_->store->images().is_complete(2));
  builder_.bucket()->remove(builder_.key("packs/2/"), {});
  bring(2);  // the small file, not the pack
  expect_version(2);
}

TEST_F(MaterializePatches, ADamagedPatchIsRemovedAndThePacksAreUsed) {
  for (int i = 0; i < 3; i++) add_version();
  keep_only(1);
  damage({PatchLevel::one, 2, 3});
  EXPECT_FALSE(rebuild(4));
  EXPECT_EQ(span_count(), 2u);
  EXPECT_FALSE(host_->store->images().is_complete(4));
  bring(4);
  expect_version(4);
}

TEST_F(MaterializePatches, BesideADamagedPatchAnotherPathIsUsed) {
  for (int i = 0; i < 8; i++) add_version();
  fold_all(host_->store->patches(), {}, {});
  const auto folded = host_->store->patches().list();
  ASSERT_EQ(folded.back().ends.level, PatchLevel::eight);
  keep_only(1);
  damage(folded.back().span());
  lose_bucket();
  EXPECT_TRUE(rebuild(9));
  expect_version(9);
}

TEST_F(MaterializePatches, AMissingSpanTakesTheBucket) {
  for (int i = 0; i < 3; i++) add_version();
  keep_only(1);
  host_->store->patches().remove({PatchLevel::one, 2, 3});
  EXPECT_FALSE(rebuild(4));
  bring(4);
  expect_version(4);
}

TEST_F(MaterializePatches, ADamagedImageIsNotBlamedOnThePatches) {
  add_version();
  add_version();
  keep_only(1);
  const auto path = host_->store->images().image_directory(1) / "a.safetensors";
  flip_byte(path, stdfs::file_size(path) - 5);
  EXPECT_FALSE(rebuild(3));
  EXPECT_EQ(span_count(), 2u);
  EXPECT_FALSE(host_->store->images().is_complete(1));
  bring(3);
  expect_version(3);
}

TEST_F(MaterializePatches, NothingLeadsOverAChangeOfTheTensorTable) {
  add_version();
  model_.files["b.safetensors"].push_back(random_tensor("more", Dtype::bf16, {100}, rng_));
  add_version();
  EXPECT_EQ(span_count(), 1u);
  keep_only(1);
  EXPECT_FALSE(rebuild(3));
  EXPECT_TRUE(rebuild(2));
  bring(3);
  expect_version(3);
}

TEST_F(MaterializePatches, PatchesOfAnotherRepositoryOfThisNameLeadNowhere) {
  add_version();
  SpanEnds ends = host_->store->patches().list().front().ends;
  host_->store->patches().remove(ends.span());
  ends.last.manifest[0] ^= std::byte{1};
  const Base from = base_of(*host_->store, host_->history, 1, {});
  const Base to = base_of(*host_->store, host_->history, 2, {});
  PatchTable& table = host_->store->patches();
  table.install(ends, take_patches(table, ends, from, to, {}));
  keep_only(1);
  EXPECT_FALSE(rebuild(2));
  bring(2);
  expect_version(2);
}

TEST_F(MaterializePatches, WithoutImagesThereIsNothingToBeginWith) {
  add_version();
  forget(1);
  forget(2);
  EXPECT_FALSE(rebuild(2));
  bring(2);
  expect_version(2);
}

TEST_F(MaterializePatches, TheyAreThereAfterARestart) {
  for (int i = 0; i < 3; i++) add_version();
  keep_only(1);
  sync_all_images(host_->store->images());
  host_.reset();
  host_ = std::make_unique<Host>(builder_.bucket(), directory_ / "store", StoreLimits{1u << 30, 0});
  lose_bucket();
  EXPECT_TRUE(rebuild(4));
  expect_version(4);
}

TEST_F(MaterializePatches, PatchesOfADamagedImageAreNotTaken) {
  model_.nudge_all(0.01, rng_);
  bring(builder_.add(model_.tree()));
  const auto path = host_->store->images().image_directory(1) / "a.safetensors";
  flip_byte(path, stdfs::file_size(path) - 5);
  EXPECT_THROW(take(1, 2), BaseDamaged);
  EXPECT_EQ(span_count(), 0u);
}

}  // namespace
}  // namespace weightfs::test
