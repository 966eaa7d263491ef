// Patches of every variant: the laws of kernels/dispatch/patch.hpp, a model of sums by position,
// and what is done with damaged bytes.
#include "kernels/dispatch/patch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>

#include "kernels/dispatch/diff.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "kernels/scalar/ef.hpp"
#include "kernels/scalar/patch_parts.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

using test::changed_elements;
using test::get_element;
using test::scratch;
using test::set_element;
using test::Step;

/// Differences by position, modulo 2^width; those of 0 stand for unchanged elements.
using Model = std::map<std::size_t, std::uint32_t>;

using Param = std::tuple<const Variant*, Kind>;

std::string param_name(const testing::TestParamInfo<Param>& info) {
  const auto& [variant, kind] = info.param;
  return std::string(variant->name) + "_" +
         test::kind_name(testing::TestParamInfo<Kind>(kind, info.index));
}

std::vector<Param> all_params() {
  std::vector<Param> params;
  for (const Variant& variant : variants()) {
    for (const Kind kind : test::kKinds) params.emplace_back(&variant, kind);
  }
  return params;
}

bool equal(const Changes& a, const Changes& b) {
  const auto equal_lists = [](const auto& x, const auto& y, std::size_t count) {
    return std::equal(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(count), y.begin());
  };
  return a.count == b.count && a.exception_count == b.exception_count &&
         equal_lists(a.position, b.position, a.count) &&
         equal_lists(a.difference, b.difference, a.count) &&
         equal_lists(a.exception, b.exception, a.exception_count);
}

class Patch : public testing::TestWithParam<Param> {
 protected:
  [[nodiscard]] const Variant& variant() const { return *std::get<0>(GetParam()); }
  [[nodiscard]] Kind kind() const { return std::get<1>(GetParam()); }
  [[nodiscard]] std::size_t width() const { return width_bytes(kind()); }
  [[nodiscard]] std::uint32_t sign() const { return 1U << (8 * width() - 1); }
  [[nodiscard]] std::uint32_t mask() const { return 2 * sign() - 1; }

  [[nodiscard]] Bytes random(std::size_t elements) {
    return test::random_elements(kind(), elements, rng_);
  }
  [[nodiscard]] Bytes changed(const Bytes& old, double share, Step how) {
    return changed_elements(kind(), old, share, how, rng_);
  }

  [[nodiscard]] Bytes make(const Bytes& old_block, const Bytes& new_block) const {
    Bytes patch;
    variant().make_patch(kind(), old_block, new_block, scratch(), patch);
    return patch;
  }
  /// Memory of exactly the patch's size, so that sanitizers see each step beyond it.
  [[nodiscard]] std::optional<Bytes> apply(const Bytes& block, const Bytes& patch) const {
    Bytes result = block;
    if (!variant().apply_patch(kind(), patch, result, scratch())) return std::nullopt;
    return result;
  }
  /// Appends to what is there, and checks that nothing else happens to it.
  [[nodiscard]] std::optional<Bytes> fold(std::size_t elements,
                                          const std::vector<Bytes>& patches) const {
    const std::vector<ByteSpan> spans(patches.begin(), patches.end());
    Bytes folded = {std::byte{9}};
    const bool is_good = variant().fold_patches(kind(), elements, spans, scratch(), folded);
    return without_front(is_good, folded);
  }
  [[nodiscard]] std::optional<Bytes> invert(std::size_t elements, const Bytes& patch) const {
    Bytes inverse = {std::byte{9}};
    const bool is_good = variant().invert_patch(kind(), elements, patch, scratch(), inverse);
    return without_front(is_good, inverse);
  }

  [[nodiscard]] std::uint32_t ordered(std::uint32_t bits) const {
    if (kind() == Kind::u8) return bits;
    return (bits & sign()) != 0 ? ~bits & mask() : bits | sign();
  }
  [[nodiscard]] std::uint32_t unordered(std::uint32_t bits) const {
    if (kind() == Kind::u8) return bits;
    return (bits & sign()) != 0 ? bits & ~sign() : ~bits & mask();
  }
  [[nodiscard]] Bytes moved(const Bytes& block, const Model& model) const {
    Bytes result = block;
    for (const auto& [position, difference] : model) {
      const std::uint32_t from = ordered(get_element(kind(), block, position));
      set_element(kind(), result, position, unordered((from + difference) & mask()));
    }
    return result;
  }
  /// The patch for these differences.
  [[nodiscard]] Bytes patch_of(std::size_t elements, const Model& model) {
    const Bytes block = random(elements);
    return make(block, moved(block, model));
  }
  [[nodiscard]] Bytes diff_of(std::size_t elements, const Model& model) const {
    Bytes patch(1 + elements * width());
    patch[0] = static_cast<std::byte>(Mode::diff);
    for (const auto& [position, difference] : model) {
      std::memcpy(patch.data() + 1 + position * width(), &difference, width());
    }
    return patch;
  }
  [[nodiscard]] Bytes ef_of(std::size_t elements, const Model& model) const {
    static const auto changes = std::make_unique<Changes>();
    const Bytes block(elements * width());
    find_changes(kind(), block, moved(block, model), *changes);
    Bytes patch;
    EXPECT_TRUE(encode_ef(*changes, elements, 7 * (1 + elements * width()), patch));
    return patch;
  }
  /// Changes about `share` of the elements by differences of every size, the extremes among them.
  [[nodiscard]] Model random_model(std::size_t elements, double share) {
    Model model;
    const auto count = static_cast<std::size_t>(share * static_cast<double>(elements));
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t any = static_cast<std::uint32_t>(rng_()) >> rng_() % 32;
      const std::uint32_t choices[] = {1,          mask(),       sign(), sign() - 1,
                                       sign() + 1, any & mask(), any & 3};
      model[rng_() % elements] = choices[rng_() % std::size(choices)];
    }
    return model;
  }
  void add(Model& sums, const Model& model) const {
    for (const auto& [position, difference] : model) {
      sums[position] = (sums[position] + difference) & mask();
    }
  }

  test::Random rng_ = test::make_rng();

 private:
  static std::optional<Bytes> without_front(bool is_good, const Bytes& appended) {
    EXPECT_EQ(appended.at(0), std::byte{9});
    if (!is_good) {
      EXPECT_EQ(appended.size(), 1U);
      return std::nullopt;
    }
    return Bytes(appended.begin() + 1, appended.end());
  }
};

INSTANTIATE_TEST_SUITE_P(Variants, Patch, testing::ValuesIn(all_params()), param_name);

constexpr std::size_t kPatchSizes[] = {0,  1,  2,   7,    31,   32,    33,   63,
                                       64, 65, 127, 1000, 4099, 65535, 65536};
constexpr double kShares[] = {0.0, 0.001, 0.012, 0.1, 0.5, 1.0};

TEST_P(Patch, AppliedToTheOldBlockGivesTheNewOneAndInvertedGivesItBack) {
  for (const std::size_t elements : kPatchSizes) {
    const Bytes before = random(elements);
    for (const double share : kShares) {
      for (const Step how : {Step::unit, Step::few, Step::any}) {
        SCOPED_TRACE(testing::Message() << elements << " elements, share " << share);
        const Bytes after = changed(before, share, how);
        const Bytes patch = make(before, after);
        ASSERT_LE(patch.size(), patch_bytes_max(kind()));
        ASSERT_TRUE(apply(before, patch) == after);
        const std::optional<Bytes> inverse = invert(elements, patch);
        ASSERT_TRUE(inverse.has_value());
        ASSERT_TRUE(inverse == make(after, before));
        ASSERT_TRUE(apply(after, *inverse) == before);
        ASSERT_TRUE(invert(elements, *inverse) == patch);
      }
    }
  }
}

TEST_P(Patch, CountsTheChangesAndAppends) {
  const Bytes before = random(5000);
  const Bytes after = changed(before, 0.05, Step::few);
  Bytes patch = {std::byte{9}};
  EXPECT_EQ(variant().make_patch(kind(), before, after, scratch(), patch),
            test::count_changed(kind(), before, after));
  EXPECT_EQ(patch.at(0), std::byte{9});
  patch.erase(patch.begin());
  EXPECT_TRUE(patch == make(before, after));
}

TEST_P(Patch, IsSummarizedAsTheBytesAre) {
  for (const double share : {0.0, 0.01, 0.9}) {
    const Bytes before = random(5000);
    const Bytes after = changed(before, share, Step::few);
    const DiffSummary wanted = summarize_diff(kind(), before, after);
    DiffSummary found{.changed = 7, .largest_ulp = 7};
    ASSERT_TRUE(summarize_patch(kind(), 5000, make(before, after), scratch(), found));
    EXPECT_EQ(found.changed, wanted.changed);
    const std::uint64_t half = std::uint64_t{1} << (8 * width_bytes(kind()) - 1);
    if (wanted.largest_ulp < half) {
      EXPECT_EQ(found.largest_ulp, wanted.largest_ulp);
    }
  }
  DiffSummary ignored;
  EXPECT_FALSE(summarize_patch(kind(), 5000, Bytes{std::byte{99}}, scratch(), ignored));
}

TEST_P(Patch, OfVersionsInARowFoldIntoThePatchFromTheFirstToTheLast) {
  for (const std::size_t elements : kPatchSizes) {
    for (const double share : {0.001, 0.012, 0.2}) {
      SCOPED_TRACE(testing::Message() << elements << " elements, share " << share);
      std::vector<Bytes> versions = {random(elements)};
      std::vector<Bytes> patches;
      for (int i = 0; i < 8; ++i) {
        versions.push_back(changed(versions.back(), share, static_cast<Step>(rng_() % 3)));
        patches.push_back(make(versions[versions.size() - 2], versions.back()));
      }
      ASSERT_TRUE(fold(elements, patches) == make(versions.front(), versions.back()));
      ASSERT_TRUE(fold(elements, {patches[0], patches[1]}) == make(versions[0], versions[2]));
    }
  }
}

TEST_P(Patch, FoldsToTheSumsOfTheModelInAnyOrderAndForm) {
  for (const std::size_t elements : {1UL, 2UL, 65UL, 1000UL, 4099UL, kBlockElements}) {
    for (const std::size_t count : {0UL, 1UL, 2UL, 7UL, 64UL}) {
      SCOPED_TRACE(testing::Message() << elements << " elements, " << count << " patches");
      Model sums;
      std::vector<Bytes> patches;
      for (std::size_t i = 0; i < count; ++i) {
        const Model model = random_model(elements, kShares[rng_() % 5]);
        add(sums, model);
        patches.push_back(rng_() % 8 == 0 ? diff_of(elements, model) : patch_of(elements, model));
      }
      const std::optional<Bytes> folded = fold(elements, patches);
      const Bytes block = random(elements);
      ASSERT_TRUE(folded == make(block, moved(block, sums)));
      std::shuffle(patches.begin(), patches.end(), rng_);
      ASSERT_TRUE(fold(elements, patches) == folded);
    }
  }
}

TEST_P(Patch, FoldedInGroupsIsFoldedAtOnce) {
  constexpr std::size_t kElements = 3000;
  std::vector<Bytes> patches;
  std::vector<Bytes> groups;
  for (int group = 0; group < 4; ++group) {
    std::vector<Bytes> own;
    for (int i = 0; i < 4; ++i) own.push_back(patch_of(kElements, random_model(kElements, 0.03)));
    groups.push_back(*fold(kElements, own));
    patches.insert(patches.end(), own.begin(), own.end());
  }
  EXPECT_TRUE(fold(kElements, groups) == fold(kElements, patches));
}

TEST_P(Patch, AChangeThatComesBackVanishes) {
  for (const std::uint32_t difference : {1U, mask(), sign(), sign() - 1, 3U}) {
    const Model there = {{5, difference}, {900, 1}, {999, sign()}};
    const Model back = {{5, (0U - difference) & mask()}, {999, sign()}};
    const std::vector<Bytes> patches = {patch_of(1000, there), patch_of(1000, back)};
    EXPECT_TRUE(fold(1000, patches) == patch_of(1000, {{900, 1}}));
    EXPECT_TRUE(fold(1000, {patches[0], *invert(1000, patches[0])}) == Bytes{});
  }
}

TEST_P(Patch, SumsWrapAround) {
  const Model half = {{0, sign() / 2}, {17, sign() - 1}, {63, sign() + 1}};
  Model sums;
  std::vector<Bytes> patches;
  for (int i = 0; i < 5; ++i) {
    patches.push_back(patch_of(64, half));
    add(sums, half);
    EXPECT_TRUE(fold(64, patches) == patch_of(64, sums)) << i;
  }
}

TEST_P(Patch, TheHalfOfTheRangeIsItsOwnInverse) {
  const Bytes patch = patch_of(1000, {{3, sign()}, {400, sign()}, {999, 1}});
  EXPECT_TRUE(invert(1000, patch) == patch_of(1000, {{3, sign()}, {400, sign()}, {999, mask()}}));
  Model all;
  for (std::size_t i = 0; i < 1000; ++i) all[i] = sign();
  EXPECT_TRUE(invert(1000, patch_of(1000, all)) == patch_of(1000, all));
}

TEST_P(Patch, OfAllElementsWorks) {
  for (const std::uint32_t difference : {1U, mask(), sign(), 2U, sign() / 2}) {
    SCOPED_TRACE(difference);
    Model all;
    for (std::size_t i = 0; i < kBlockElements; ++i) all[i] = difference;
    const Bytes block = random(kBlockElements);
    const Bytes patch = make(block, moved(block, all));
    EXPECT_TRUE(apply(block, patch) == moved(block, all));
    EXPECT_TRUE(*fold(kBlockElements, {patch, *invert(kBlockElements, patch)}) == Bytes{});
    Model sums = all;
    add(sums, all);
    EXPECT_TRUE(fold(kBlockElements, {patch, patch}) == make(block, moved(block, sums)));
  }
}

TEST_P(Patch, IsEfOnlyIfItSavesAnEighth) {
  std::size_t efs = 0;
  std::size_t diffs = 0;
  // Wide elements are seldom better off as a diff: until both were met.
  const auto has_both = [&] { return efs > 0 && diffs > 0; };
  for (int i = 0; i < 300 || (!has_both() && i < 100'000); ++i) {
    const std::size_t elements = 1 + rng_() % 300;
    const Model model = random_model(elements, static_cast<double>(1 + rng_() % 100) / 100);
    const Bytes block(elements * width());
    if (moved(block, model) == block) continue;
    const Bytes ef = ef_of(elements, model);
    const Bytes diff = diff_of(elements, model);
    const bool takes_ef = 8 * ef.size() <= 7 * diff.size();
    const Bytes patch = patch_of(elements, model);
    ASSERT_TRUE(patch == (takes_ef ? ef : diff));
    ++(takes_ef ? efs : diffs);
    // Whatever form it comes in, it leaves in its own.
    ASSERT_TRUE(fold(elements, {diff}) == patch);
    ASSERT_TRUE(invert(elements, *invert(elements, diff)) == patch);
    if (ef.size() > diff.size()) continue;
    ASSERT_TRUE(fold(elements, {ef}) == patch);
    ASSERT_TRUE(invert(elements, *invert(elements, ef)) == patch);
  }
  EXPECT_GT(efs, 0U);
  EXPECT_GT(diffs, 0U);
}

TEST_P(Patch, OfNothingIsEmptyAndTheModeSameAndADiffOfZerosMeanTheSame) {
  for (const std::size_t elements : {0UL, 1UL, 64UL, 1001UL}) {
    const Bytes block = random(elements);
    EXPECT_TRUE(make(block, block).empty());
    const Bytes same = {static_cast<std::byte>(Mode::same)};
    for (const Bytes& patch : {Bytes{}, same, diff_of(elements, {})}) {
      EXPECT_TRUE(apply(block, patch) == block);
      EXPECT_TRUE(fold(elements, {patch, patch}) == Bytes{});
      EXPECT_TRUE(invert(elements, patch) == Bytes{});
    }
    EXPECT_TRUE(fold(elements, {}) == Bytes{});
  }
}

TEST_P(Patch, RefusesModesThatAreNotOfPatchesAndWrongSizes) {
  constexpr std::size_t kElements = 64;
  const Bytes block = random(kElements);
  const Bytes good = patch_of(kElements, {{3, 1}});
  const auto expect_refused = [&](const Bytes& patch) {
    EXPECT_FALSE(apply(block, patch).has_value());
    EXPECT_FALSE(invert(kElements, patch).has_value());
    EXPECT_FALSE(fold(kElements, {patch}).has_value());
    EXPECT_FALSE(fold(kElements, {good, patch}).has_value());
    EXPECT_FALSE(fold(kElements, {patch, good}).has_value());
  };
  for (int mode = 0; mode < 256; ++mode) {
    if (mode == static_cast<int>(Mode::diff)) continue;
    Bytes patch = diff_of(kElements, {});
    patch[0] = static_cast<std::byte>(mode);
    SCOPED_TRACE(mode);
    expect_refused(patch);
    if (mode != static_cast<int>(Mode::same)) expect_refused({static_cast<std::byte>(mode)});
  }
  expect_refused({static_cast<std::byte>(Mode::same), std::byte{0}});
  Bytes diff = diff_of(kElements, {});
  diff.push_back(std::byte{0});
  expect_refused(diff);
  diff.erase(diff.end() - 2, diff.end());
  expect_refused(diff);
  // Sound in itself, but longer than the differences it stands for.
  Model all;
  for (std::size_t i = 0; i < kElements; ++i) all[i] = sign();
  const Bytes ef = ef_of(kElements, all);
  if (ef.size() > 1 + kElements * width()) expect_refused(ef);
}

TEST_P(Patch, DamagedIsRefusedOrStandsForSomeDifferences) {
  constexpr std::size_t kElements = 777;
  const Bytes block = random(kElements);
  const Bytes good = patch_of(kElements, random_model(kElements, 0.1));
  std::size_t refused = 0;
  const auto check = [&](const Bytes& patch) {
    const std::optional<Bytes> applied = apply(block, patch);
    const std::optional<Bytes> inverse = invert(kElements, patch);
    const std::optional<Bytes> folded = fold(kElements, {good, patch});
    ASSERT_EQ(applied.has_value(), inverse.has_value());
    ASSERT_EQ(applied.has_value(), folded.has_value());
    refused += !applied.has_value();
    if (!applied) return;
    ASSERT_TRUE(*inverse == make(*applied, block));
    ASSERT_TRUE(*folded == make(block, *apply(*applied, good)));
  };
  for (std::size_t size = 0; size < good.size(); ++size) {
    check({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)});
  }
  for (int i = 0; i < 2000; ++i) {
    Bytes patch = good;
    for (std::uint64_t flips = 1 + rng_() % 3; flips > 0; --flips) {
      const std::size_t at = rng_() % 4 == 0 ? rng_() % 7 : rng_() % patch.size();
      patch[at] ^= static_cast<std::byte>(1U << rng_() % 8);
    }
    check(patch);
  }
  EXPECT_GT(refused, 100U);
}

TEST_P(Patch, GivesWhatScalarGives) {
  const Variant& scalar = variants().front();
  const auto changes = std::make_unique<Changes>();
  const auto expected_changes = std::make_unique<Changes>();
  for (const std::size_t elements : {1UL, 63UL, 1000UL, kBlockElements}) {
    for (const double share : {0.002, 0.05, 1.0}) {
      SCOPED_TRACE(testing::Message() << elements << " elements, share " << share);
      const Bytes before = random(elements);
      const Model model = random_model(elements, share);
      Bytes expected;
      scalar.make_patch(kind(), before, moved(before, model), scratch(), expected);
      const Bytes patch = patch_of(elements, model);
      ASSERT_TRUE(patch == expected);

      find_changes(kind(), before, moved(before, model), *expected_changes);
      ASSERT_TRUE(read_patch(kind(), elements, patch, *changes));
      ASSERT_TRUE(equal(*changes, *expected_changes));

      expected.clear();
      ASSERT_TRUE(scalar.invert_patch(kind(), elements, patch, scratch(), expected));
      ASSERT_TRUE(invert(elements, patch) == expected);

      const Bytes other = patch_of(elements, random_model(elements, share));
      expected.clear();
      ASSERT_TRUE(scalar.fold_patches(kind(), elements, std::vector<ByteSpan>{patch, other},
                                      scratch(), expected));
      ASSERT_TRUE(fold(elements, {patch, other}) == expected);
    }
  }
}

TEST_P(Patch, NeedsNoAlignment) {
  const Bytes before = random(3000);
  const Bytes after = changed(before, 0.02, Step::few);
  for (const Bytes& patch : {make(before, after), diff_of(3000, random_model(3000, 0.5))}) {
    Bytes shifted_block(before.size() + 1);
    Bytes shifted_patch(patch.size() + 3);
    std::copy(before.begin(), before.end(), shifted_block.begin() + 1);
    std::copy(patch.begin(), patch.end(), shifted_patch.begin() + 3);
    ASSERT_TRUE(variant().apply_patch(kind(), ByteSpan(shifted_patch).subspan(3),
                                      std::span(shifted_block).subspan(1), scratch()));
    const std::optional<Bytes> expected = apply(before, patch);
    ASSERT_TRUE(expected.has_value());
    EXPECT_TRUE(std::equal(expected->begin(), expected->end(), shifted_block.begin() + 1));
  }
}

TEST(PatchFunctions, AreThoseOfTheChosenVariant) {
  test::Random rng = test::make_rng();
  const Bytes before = test::random_elements(Kind::bf16, 1000, rng);
  const Bytes after = changed_elements(Kind::bf16, before, 0.1, Step::few, rng);
  Bytes patch;
  EXPECT_GT(make_patch(Kind::bf16, before, after, scratch(), patch), 0U);
  Bytes block = before;
  EXPECT_TRUE(apply_patch(Kind::bf16, patch, block, scratch()));
  EXPECT_TRUE(block == after);
  Bytes inverse;
  EXPECT_TRUE(invert_patch(Kind::bf16, 1000, patch, scratch(), inverse));
  Bytes folded;
  EXPECT_TRUE(
      fold_patches(Kind::bf16, 1000, std::vector<ByteSpan>{patch, inverse}, scratch(), folded));
  EXPECT_TRUE(folded.empty());
}

}  // namespace
}  // namespace weightfs::kernels
