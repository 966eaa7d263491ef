// What the patches of a store give without images and without the bucket: the change between any
// two versions, as a file and as a comparison.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "store/inspect/delta_files.hpp"
#include "store/inspect/patch_diff.hpp"
#include "tests/store/materialize/materialize_fixture.hpp"
#include "tests/support/patched_host.hpp"
#include "tests/support/sparse_deltas.hpp"

namespace weightfs::test {
namespace {

constexpr std::uint64_t kVersions = 6;

class HistoryFiles : public ::testing::Test {
 protected:
  void add() {
    nudge(model_.files["a.safetensors"][0], 0.02, rng_);
    nudge(model_.files["a.safetensors"][1], 0.001, rng_);
    if (patched_.builder().newest() % 2 == 0) nudge(model_.files["b.safetensors"][1], 1, rng_);
    patched_.add(model_.tree());
  }
  void add_all() {
    for (std::uint64_t i = 0; i < kVersions; i++) add();
  }
  DeltaFiles files() { return {patched_.store(), patched_.history(), {}}; }

  void expect_right(const std::filesystem::path& file, VersionPair versions) {
    EXPECT_TRUE(apply_sparse_delta(read_text(file), patched_.tree(versions.from)) ==
                patched_.tree(versions.to))
        << versions.from << " to " << versions.to;
  }

  /// All pages together.
  std::optional<std::vector<TensorDiff>> diff(VersionPair versions, std::size_t page_bytes) {
    std::vector<TensorDiff> all;
    std::uint32_t first = 0;
    for (;;) {
      auto page =
          diff_by_patches(patched_.store(), patched_.history(), versions, first, page_bytes, {});
      if (!page) return std::nullopt;
      std::ranges::move(page->tensors, std::back_inserter(all));
      if (!page->next) return all;
      EXPECT_GT(*page->next, first);
      first = *page->next;
    }
  }
  std::vector<TensorDiff> compare(VersionPair versions) {
    return diff_versions(patched_.history(), versions.from, versions.to, scratch_.path(), {}, {});
  }
  static void expect_same(const std::vector<TensorDiff>& left,
                          const std::vector<TensorDiff>& right) {
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t i = 0; i < left.size(); i++) {
      EXPECT_EQ(left[i].name, right[i].name);
      EXPECT_EQ(left[i].file, right[i].file);
      EXPECT_EQ(left[i].dtype, right[i].dtype);
      EXPECT_EQ(left[i].change, right[i].change) << left[i].name;
      EXPECT_EQ(left[i].elements, right[i].elements) << left[i].name;
      EXPECT_EQ(left[i].changed, right[i].changed) << left[i].name;
      // Of others any bit changes, and so by more than half of the range.
      if (left[i].dtype != "BF16") continue;
      EXPECT_EQ(left[i].largest_ulp, right[i].largest_ulp) << left[i].name;
    }
  }

  Random rng_ = make_rng();
  // Names are unique: else a delta would be ambiguous.
  Model model_ = [this] {
    Model model;
    model.files["a.safetensors"] = {random_tensor("x", Dtype::bf16, {1100, 1000}, rng_),
                                    random_tensor("wide", Dtype::f64, {5000}, rng_)};
    model.files["b.safetensors"] = {random_tensor("z", Dtype::f32, {70}, rng_),
                                    random_tensor("rare", Dtype::f16, {3000}, rng_)};
    model.blobs["config.json"] = "{}";
    return model;
  }();
  TempDir scratch_;
  PatchedHost patched_;
};

TEST_F(HistoryFiles, ADeltaOfAnyTwoVersionsIsMadeOfPatchesWithoutTheBucket) {
  add_all();
  patched_.keep_only(1);
  patched_.lose_bucket();
  DeltaFiles deltas = files();
  for (const VersionPair versions :
       {VersionPair{1, 6}, {6, 1}, {2, 5}, {5, 2}, {3, 4}, {4, 3}, {1, 2}}) {
    const DeltaFacts facts = deltas.facts(versions, {});
    const std::filesystem::path file = deltas.build(versions, {});
    EXPECT_EQ(std::filesystem::file_size(file), facts.size_bytes);
    EXPECT_EQ(facts.time, patched_.history().get(versions.to, {})->manifest.time);
    EXPECT_EQ(file.filename(), versions.is_step()
                                   ? std::to_string(versions.to) + ".safetensors"
                                   : std::to_string(versions.from) + "-" +
                                         std::to_string(versions.to) + ".safetensors");
    expect_right(file, versions);
  }
}

TEST_F(HistoryFiles, TheFileIsTheSameWhateverItWasMadeOf) {
  add_all();
  std::filesystem::path exported = scratch_ / "exported";
  export_sparse_delta(patched_.history(), {5, 2}, exported, {}, {});
  patched_.keep_only(6);
  patched_.lose_bucket();
  EXPECT_EQ(read_text(files().build({5, 2}, {})), read_text(exported));
}

TEST_F(HistoryFiles, WithoutPatchesBothVersionsMustBeHere) {
  add_all();
  patched_.store().patches().remove({PatchLevel::one, 3, 4});
  DeltaFiles deltas = files();
  expect_right(deltas.build({2, 5}, {}), {2, 5});  // all images are here
  patched_.keep_only(6);
  const Error error = error_of([&] { deltas.facts({3, 6}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_TRUE(mentions(error, "export --from 3 --to 6")) << error.what();
  patched_.bring(2);  // patches lead from there to 3, and from 6 to 4
  patched_.lose_bucket();
  expect_right(deltas.build({3, 6}, {}), {3, 6});
  expect_right(deltas.build({4, 2}, {}), {4, 2});
}

TEST_F(HistoryFiles, DamagedPatchesAreNotBelieved) {
  add_all();
  patched_.damage({PatchLevel::one, 3, 4});
  expect_right(files().build({2, 5}, {}), {2, 5});
  patched_.keep_only(1);
  DeltaFiles deltas = files();
  expect_right(deltas.build({3, 4}, {}), {3, 4});  // from the bucket
}

TEST_F(HistoryFiles, PairsAreNotKeptOverARestart) {
  add_all();
  const auto pair = files().build({2, 5}, {}), step = files().build(step_to(5), {});
  Store& store = patched_.store();
  EXPECT_EQ(store.deltas().list().size(), 2U);
  EXPECT_EQ(store.deltas().list().begin()->first, (VersionPair{2, 5}));
  std::size_t records = 0;
  store.db().scan(ColumnFamily::deltas, "", [&](std::string_view key, std::string_view) {
    EXPECT_EQ(key.size(), 8U) << "older releases open this store";
    records++;
  });
  EXPECT_EQ(records, 1U);
  const DeltaTable again(store.db(), store.path() / "deltas", store.temporary_directory());
  EXPECT_FALSE(std::filesystem::exists(pair));
  EXPECT_TRUE(again.find(step_to(5)));
  EXPECT_TRUE(std::filesystem::exists(step));
}

// ---- diff ----

TEST_F(HistoryFiles, AComparisonByPatchesIsThatOfTheBytes) {
  add_all();
  for (const VersionPair versions : {VersionPair{1, 6}, {6, 1}, {2, 3}, {4, 4}}) {
    const auto expected = compare(versions);
    for (const std::size_t page_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
      const auto found = diff(versions, page_bytes);
      ASSERT_TRUE(found);
      expect_same(*found, expected);
    }
  }
}

TEST_F(HistoryFiles, AComparisonNeedsNeitherImagesNorTheBucket) {
  add_all();
  const auto expected = compare({2, 5});
  patched_.keep_only(1);
  ASSERT_TRUE(patched_.store().evictor().evict(1));
  patched_.lose_bucket();
  const auto found = diff({2, 5}, 1000);
  ASSERT_TRUE(found);
  expect_same(*found, expected);
}

TEST_F(HistoryFiles, WithoutAPathThereIsNoComparison) {
  add_all();
  patched_.store().patches().remove({PatchLevel::one, 3, 4});
  EXPECT_FALSE(diff({2, 5}, 1000));
  EXPECT_TRUE(diff({4, 6}, 1000));
  EXPECT_EQ(error_of([&] { diff({4, 9}, 1000); }).code(), ErrorCode::not_found);
  patched_.damage({PatchLevel::one, 4, 5});
  EXPECT_FALSE(diff({4, 6}, 1000));
}

TEST_F(HistoryFiles, ThereIsNoPathOverAnotherTensorTable) {
  add_all();
  model_.files["b.safetensors"].push_back(random_tensor("new", Dtype::bf16, {10}, rng_));
  patched_.add(model_.tree());
  EXPECT_FALSE(diff({6, 7}, 1000));
  EXPECT_FALSE(diff({1, 7}, 1000));
}

/// The difference of a patch is known modulo 2^width.
TEST_F(HistoryFiles, OfAChangeOverHalfOfTheRangeTheyKnowWhatItIsAtLeast) {
  auto& tensor = model_.files["b.safetensors"][1];
  std::ranges::fill(tensor.data, std::byte{0});
  const auto put = [&](std::uint16_t bits) {
    for (std::size_t i = 0; i < 2; i++) tensor.data[i] = static_cast<std::byte>(bits >> 8 * i);
  };
  put(0xC400);  // -4
  patched_.add(model_.tree());
  put(0x4400);  // 4
  patched_.add(model_.tree());
  const auto exact = compare({1, 2});
  const auto found = diff({1, 2}, 1000);
  ASSERT_TRUE(found);
  EXPECT_EQ(exact[3].changed, 1U);
  EXPECT_EQ((*found)[3].changed, 1U);
  EXPECT_EQ((*found)[3].largest_ulp, 65536 - exact[3].largest_ulp);
}

}  // namespace
}  // namespace weightfs::test
