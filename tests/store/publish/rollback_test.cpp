// Rollback: a version with an older one's content, made of images, patches and packs.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/coding/delta_coder.hpp"
#include "store/materialize/bases.hpp"
#include "store/materialize/patched_base.hpp"
#include "store/publish/old_version.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/store_patches.hpp"

namespace weightfs::test {
namespace {

using Files = std::map<std::string, std::string>;

class RollbackTest : public PublishTest {
 protected:
  Store& store() { return *publisher().store; }

  /// Publishes the model.
  std::uint64_t add() {
    const std::uint64_t version = publisher().publish(directory_of(model_.tree()), "step").version;
    return done(version, model_.tree());
  }
  std::uint64_t add_changed() {
    model_.nudge_all(0.01, rng_);
    return add();
  }
  static PublishOptions back_to(std::uint64_t version) {
    PublishOptions options;
    options.wishes.rollback = version;
    return options;
  }
  std::uint64_t roll_back(std::uint64_t version) {
    const std::uint64_t made = publisher().publish(back_to(version)).version;
    return done(made, trees_.at(version));
  }

  /// The version is here, with the patches that lead to it.
  std::uint64_t done(std::uint64_t version, const Files& files) {
    trees_[version] = files;
    materialize(store(), publisher().history, version, {}, {});
    if (version > 1) take(version - 1, version);
    return version;
  }
  void take(std::uint64_t from, std::uint64_t to) {
    if (!store().images().is_complete(from)) return;
    take_between(store(), publisher().history, from, to);
  }
  void keep_only(std::uint64_t version) { keep_only_images(store(), version); }
  void lose_packs() {
    for (const auto& key : keys_below(*bucket_, "packs/")) bucket_->remove(key, {});
    for (const auto& key : keys_below(*bucket_, "snapshots/")) bucket_->remove(key, {});
  }

  void expect_version(std::uint64_t version) {
    EXPECT_TRUE(read_on_a_fresh_host(version) == trees_.at(version)) << version;
  }

  Random rng_ = make_rng();
  Model model_ = small_model(rng_);
  std::map<std::uint64_t, Files> trees_;
};

TEST_F(RollbackTest, AVersionHasTheContentOfAnOlderOne) {
  for (int i = 0; i < 4; i++) i == 0 ? add() : add_changed();
  PublishOptions options = back_to(2);
  options.wishes.tag = "stable";
  options.wishes.meta = {{"why", "loss"}};
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 5u);
  EXPECT_EQ(result.parent, 4u);
  EXPECT_TRUE(result.delta);
  ASSERT_TRUE(result.rollback);
  EXPECT_EQ(result.rollback->patched, 0u);
  EXPECT_GT(result.rollback->other, 0u) << "version 2 has images here";
  const Manifest manifest = manifest_of(5), old = manifest_of(2);
  EXPECT_EQ(manifest.parent, 4u);
  EXPECT_EQ(manifest.tag, "stable");
  EXPECT_EQ(manifest.meta,
            (std::map<std::string, std::string>{{"rollback", "2"}, {"why", "loss"}}));
  EXPECT_EQ(manifest.root, old.root);
  EXPECT_EQ(manifest.layout.sha256, old.layout.sha256);
  EXPECT_FALSE(manifest.snapshot);
  EXPECT_TRUE(read_on_a_fresh_host(5) == trees_.at(2));
  expect_sound();
}

TEST_F(RollbackTest, WherePatchesLeadNoPackIsRead) {
  for (int i = 0; i < 5; i++) i == 0 ? add() : add_changed();
  keep_only(5);
  lose_packs();
  EXPECT_EQ(publisher().publish(back_to(2)).version, 6u);
  materialize(store(), publisher().history, 6, {}, {});
  EXPECT_TRUE(read_tree(store().images().image_directory(6)) == trees_.at(2));
}

/// However near other images are: those would be read besides.
TEST_F(RollbackTest, WherePatchesLeadFromTheParentNoOtherImageIsRead) {
  for (int i = 0; i < 5; i++) i == 0 ? add() : add_changed();
  for (const std::uint64_t version : store().images().complete_versions()) {
    if (version < 4) {
      EXPECT_TRUE(store().evictor().evict(version));
    }
  }
  const PublishResult result = publisher().publish(back_to(2));
  ASSERT_TRUE(result.rollback);
  EXPECT_GT(result.rollback->patched, 0u);
  EXPECT_EQ(result.rollback->other, 0u);
  EXPECT_TRUE(read_on_a_fresh_host(6) == trees_.at(2));
}

/// No chunk is read twice: what differs is made of the chunk that is coded against.
TEST_F(RollbackTest, ChunksAreMadeOfTheParentsAndPatches) {
  add();
  for (int i = 0; i < 3; i++) {
    nudge(model_.files["a.safetensors"][0], 0.01, rng_);
    add();
  }
  keep_only(4);
  History& history = publisher().history;
  const Base parent = base_of(store(), history, 4, {});
  const OldVersion content(store(), history, history.get(1, {}), parent, kernels::make_cpu_coder(),
                           {}, {});
  CodeOptions options;
  options.spool = store().temporary_directory();
  const CodedDelta delta = code_delta(content, parent, options, {}, {});
  EXPECT_EQ(content.patched_chunks(), 1u);
  EXPECT_EQ(content.other_chunks(), 0u);
  EXPECT_EQ(delta.rollback.equal, delta.hashes.size() - 1);
  EXPECT_EQ(root_of(delta.hashes), manifest_of(1).root);
}

// As the sweep for damaged patches does.  The hand-over of the rollback failed for good.
TEST_F(RollbackTest, PatchesThatSomebodyElseDropsMeanwhileAreDoneWithout) {
  for (int i = 0; i < 3; i++) i == 0 ? add() : add_changed();
  keep_only(3);
  History& history = publisher().history;
  const Base parent = base_of(store(), history, 3, {});
  const OldVersion content(store(), history, history.get(1, {}), parent, kernels::make_cpu_coder(),
                           {}, {});
  EXPECT_TRUE(store().patches().remove({PatchLevel::one, 1, 2}));
  CodeOptions options;
  options.spool = store().temporary_directory();
  try {
    (void)code_delta(content, parent, options, {}, {});
    FAIL() << "the patches are gone";
  } catch (const PatchDamaged& damaged) {
    EXPECT_EQ(damaged.span(), (PatchSpan{PatchLevel::one, 1, 2})) << damaged.what();
    EXPECT_TRUE(drop_damaged_patches(store(), damaged));
  }
  EXPECT_EQ(publisher().publish(back_to(1)).version, 4u);
  EXPECT_TRUE(read_on_a_fresh_host(4) == trees_.at(1));
}

TEST_F(RollbackTest, WithoutPatchesPacksAreRead) {
  for (int i = 0; i < 4; i++) i == 0 ? add() : add_changed();
  for (const SpanInfo& span : store().patches().list()) store().patches().remove(span.span());
  keep_only(4);
  EXPECT_EQ(publisher().publish(back_to(2)).version, 5u);
  EXPECT_TRUE(read_on_a_fresh_host(5) == trees_.at(2));
  Host elsewhere = fresh_host();  // has nothing at all
  EXPECT_EQ(elsewhere.publish(back_to(3)).version, 6u);
  EXPECT_TRUE(read_on_a_fresh_host(6) == trees_.at(3));
  expect_sound();
}

TEST_F(RollbackTest, TensorsAndFilesMayDiffer) {
  add();
  model_.files["b.safetensors"].push_back(random_tensor("new", Dtype::bf16, {1000}, rng_));
  model_.files["a.safetensors"][0] = random_tensor("x", Dtype::bf16, {301, 101}, rng_);
  model_.files["c.safetensors"] = {random_tensor("y", Dtype::f32, {100}, rng_)};
  model_.blobs["config.json"] = R"({"model_type":"other"})";
  model_.blobs.erase("sub/notes.txt");
  model_.metadata["step"] = "2";
  add();
  roll_back(1);
  roll_back(2);
  for (const std::uint64_t version : {3u, 4u}) expect_version(version);
  expect_sound();
}

TEST_F(RollbackTest, ToTheNewestVersionIsADeltaWithoutChanges) {
  add();
  add_changed();
  const PublishResult result = publisher().publish(back_to(2));
  EXPECT_EQ(result.version, 3u);
  EXPECT_EQ(result.changed_elements, 0u);
  EXPECT_TRUE(manifest_of(3).delta.value().packs.empty());
  EXPECT_TRUE(read_on_a_fresh_host(3) == trees_.at(2));
}

TEST_F(RollbackTest, WhatCannotBeIsRefused) {
  const auto code_of_rollback = [&](const PublishOptions& options) {
    return error_of([&] { publisher().publish(options); }).code();
  };
  EXPECT_EQ(code_of_rollback(back_to(1)), ErrorCode::not_found) << "there is no version";
  add();
  add_changed();
  EXPECT_EQ(code_of_rollback(back_to(3)), ErrorCode::not_found);
  PublishOptions options = back_to(1);
  options.wishes.snapshot = true;
  EXPECT_EQ(code_of_rollback(options), ErrorCode::invalid);
  options = back_to(1);
  options.wishes.meta = {{"rollback", "7"}};
  EXPECT_EQ(code_of_rollback(options), ErrorCode::invalid);
  bucket_->remove(keys::manifest(1), {});
  EXPECT_EQ(code_of_rollback(back_to(1)), ErrorCode::corrupt);
  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
  EXPECT_TRUE(keys_below(*bucket_, "packs/3/").empty()) << "uploads were left";
}

TEST_F(RollbackTest, DamagedPatchesAndImagesAreNotBelieved) {
  for (int i = 0; i < 4; i++) i == 0 ? add() : add_changed();
  keep_only(4);
  damage_span(store(), {PatchLevel::one, 2, 3});
  EXPECT_EQ(publisher().publish(back_to(1)).version, 5u);
  EXPECT_TRUE(read_on_a_fresh_host(5) == trees_.at(1));

  materialize(store(), publisher().history, 5, {}, {});
  const stdfs::path image = store().images().image_directory(5) / "a.safetensors";
  rot(image, stdfs::file_size(image) - 1);
  EXPECT_EQ(publisher().publish(back_to(3)).version, 6u);
  EXPECT_TRUE(read_on_a_fresh_host(6) == trees_.at(3));
  expect_sound();
}

TEST_F(RollbackTest, WhoLosesTheRaceConflictsOrGoesOnWithRebase) {
  for (int i = 0; i < 3; i++) i == 0 ? add() : add_changed();
  Host other = fresh_host();
  bool is_raced = false;
  PublishOptions options = back_to(1);
  options.at = [&](std::string_view point) {
    if (point != "before-commit" || is_raced) return;
    is_raced = true;
    model_.nudge_all(0.01, rng_);
    other.publish(directory_of(model_.tree()));
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(manifest_of(4).meta.count("rollback"), 0u);
  is_raced = false;
  options.wishes.rebase = true;
  EXPECT_EQ(publisher().publish(options).version, 6u);
  EXPECT_EQ(manifest_of(6).meta.at("rollback"), "1");
  EXPECT_TRUE(read_on_a_fresh_host(6) == trees_.at(1));
  expect_sound();
}

/// Against plain copies of the files.
TEST_F(RollbackTest, RandomHistories) {
  add();
  const auto pick = [&](std::uint64_t count) { return rng_() % count; };
  for (int i = 0; i < (kSanitized ? 10 : 25); i++) {
    switch (pick(8)) {
      case 0:
      case 1:
      case 2:
        add_changed();
        break;
      case 3:
        model_.metadata["step"] = std::string(pick(40), 'x');
        model_.blobs["config.json"] = std::to_string(pick(3));
        if (pick(2) == 0) {
          model_.files["b.safetensors"].push_back(
              random_tensor("t" + std::to_string(i), Dtype::f32, {10 + pick(100)}, rng_));
        }
        add();
        break;
      case 4:
        keep_only(trees_.rbegin()->first);
        break;
      case 5: {
        const auto spans = store().patches().list();
        if (!spans.empty()) store().patches().remove(spans[pick(spans.size())].span());
        break;
      }
      default:
        roll_back(1 + pick(trees_.size()));
    }
  }
  for (const auto& [version, files] : trees_) expect_version(version);
  expect_sound();
}

}  // namespace
}  // namespace weightfs::test
