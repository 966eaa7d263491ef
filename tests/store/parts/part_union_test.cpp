// The version that parts make together, and what is refused.
#include "store/parts/part_union.hpp"

#include <gtest/gtest.h>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "tests/store/parts/part_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"

namespace weightfs::test {
namespace {

class PartUnionTest : public testing::Test {
 protected:
  PartUnion unite(const std::vector<FoundPart>& parts) {
    return unite_parts(parts, {parent_.get(), {}},
                       [&](const BlobRef& blob) { return blobs_.at(blob.path); });
  }

  /// The message with which the union is refused; every word must be in it.
  void expect_refused(const std::vector<FoundPart>& parts, const std::vector<std::string>& words,
                      ErrorCode code = ErrorCode::invalid) {
    std::string message;
    EXPECT_EQ(code_of([&] { static_cast<void>(unite(parts)); }, &message), code) << message;
    for (const std::string& word : words) EXPECT_TRUE(contains(message, word)) << message;
  }

  void add_blob(FoundPart& part, const std::string& path, const std::string& text) {
    part.record.blobs.push_back({path, text.size(), sha256(as_bytes(text))});
    blobs_[path] = text;
  }

  FoundPart first_ = part_of(1, 2, {{"b.safetensors", {small_tensor("b")}}});
  FoundPart second_ = part_of(2, 2,
                              {{"a.safetensors", {small_tensor("a"), small_tensor("aa")}},
                               {"c.safetensors", {small_tensor("c")}}});
  std::shared_ptr<const Layout> parent_ =
      layout_of({{"a.safetensors", {small_tensor("a"), small_tensor("aa")}},
                 {"b.safetensors", {small_tensor("b")}},
                 {"c.safetensors", {small_tensor("c")}}});
  std::map<std::string, std::string> blobs_;
};

TEST_F(PartUnionTest, HasAllFilesWithTheHashesOfTheirParts) {
  first_.record.delta->changed_elements = 3;
  first_.record.delta->packs = {{std::string(32, '1') + "-0"}};
  second_.record.delta->changed_elements = 4;
  second_.record.delta->packs = {{std::string(32, '2') + "-0"}};
  second_.record.features = {"xr"};
  const PartUnion made = unite({first_, second_});
  EXPECT_EQ(made.layout->id(), parent_->id());
  EXPECT_EQ(made.hashes.chunks, (std::vector<std::uint64_t>{2000, 2001, 1000, 2002}));
  EXPECT_EQ(made.delta->changed_elements, 7u);
  EXPECT_EQ(made.delta->packs.size(), 2u);
  EXPECT_TRUE(made.needs_xr);
  EXPECT_FALSE(made.snapshot);
}

TEST_F(PartUnionTest, AFileOfTensorsInTwoPartsIsNamed) {
  const FoundPart other = part_of(2, 2, {{"b.safetensors", {small_tensor("z")}}});
  expect_refused({first_, other}, {"b.safetensors", "'z'", "parts 1 and 2"});
}

TEST_F(PartUnionTest, ATensorInTwoFilesIsNamedWithBothFilesAndParts) {
  const FoundPart other = part_of(
      2, 2, {{"a.safetensors", {small_tensor("b")}}, {"c.safetensors", {small_tensor("c")}}});
  expect_refused({first_, other},
                 {"'b'", "a.safetensors of part 2", "b.safetensors of part 1", "slice"});
}

TEST_F(PartUnionTest, TheSameNameInOtherDirectoriesIsAnotherTensor) {
  parent_ = nullptr;
  FoundPart one = part_of(1, 2, {{"x/m.safetensors", {small_tensor("w")}}});
  FoundPart two = part_of(2, 2, {{"y/m.safetensors", {small_tensor("w")}}});
  one.record.snapshot = two.record.snapshot = true;
  const PartUnion made = unite({one, two});
  EXPECT_EQ(made.layout->files().size(), 2u);
  EXPECT_TRUE(made.indexes.empty());
}

TEST_F(PartUnionTest, SmallFilesMayBeInSeveralPartsIfTheyAreEqual) {
  add_blob(first_, "config.json", "{}");
  add_blob(second_, "config.json", "{}");
  EXPECT_EQ(unite({first_, second_}).blobs.size(), 1u);
  second_.record.blobs.clear();
  add_blob(second_, "config.json", "{ }");
  expect_refused({first_, second_}, {"config.json", "parts 1 and 2", "different bytes"});
}

TEST_F(PartUnionTest, ASmallFileIsNoFileOfTensorsNorADirectory) {
  add_blob(first_, "a.safetensors", "x");
  expect_refused({first_, second_}, {"a.safetensors", "part 1", "part 2"});
  first_.record.blobs.clear();
  add_blob(first_, "a.safetensors/config.json", "x");
  expect_refused({first_, second_}, {"a.safetensors"});
}

TEST_F(PartUnionTest, MakesAnIndexWhereShardsOfSeveralPartsHaveNone) {
  const PartUnion made = unite({first_, second_});
  ASSERT_EQ(made.indexes.size(), 1u);
  EXPECT_EQ(made.indexes.begin()->first, "model.safetensors.index.json");
  EXPECT_EQ(made.indexes.begin()->second,
            "{\n  \"metadata\": {\n    \"total_size\": 32\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"a.safetensors\",\n    \"aa\": \"a.safetensors\",\n"
            "    \"b\": \"b.safetensors\",\n    \"c\": \"c.safetensors\"\n  }\n}\n");
}

TEST_F(PartUnionTest, ChecksTheIndexThatAPartBrings) {
  const std::string path = "model.safetensors.index.json";
  add_blob(first_, path, R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
  EXPECT_TRUE(unite({first_, second_}).indexes.empty());
  blobs_[path] = R"({"weight_map":{"a":"b.safetensors"}})";
  expect_refused({first_, second_}, {"'a'", "a.safetensors", path}, ErrorCode::corrupt);
  blobs_[path] = R"({"weight_map":{"d":"d.safetensors"}})";
  expect_refused({first_, second_}, {"d.safetensors", path}, ErrorCode::not_found);
}

/// Each rank has some of the shards; one was killed before it had written all of its own.
TEST_F(PartUnionTest, RefusesShardsWhoseSiblingsAreInNoPart) {
  const auto shards_of = [](unsigned part, const std::vector<std::string>& numbers) {
    std::map<std::string, Tensors> files;
    for (const std::string& number : numbers) {
      files["model-0000" + number + "-of-00008.safetensors"] = {small_tensor("w" + number)};
    }
    return part_of(part, 2, files);
  };
  FoundPart one = shards_of(1, {"1", "2"}), two = shards_of(2, {"5", "6", "7", "8"});
  FoundPart others = shards_of(2, {"3", "4", "5", "6", "7", "8"});
  for (const bool is_first : {true, false}) {
    if (is_first) parent_ = nullptr;
    one.record.snapshot = two.record.snapshot = others.record.snapshot = true;
    expect_refused({one, two}, {"model-00003-of-00008.safetensors is missing", "the version has"},
                   ErrorCode::not_found);
    EXPECT_EQ(unite({one, others}).indexes.size(), 1u);
    parent_ = layout_of({{"a.safetensors", {small_tensor("a")}}});
  }
  add_blob(one, "model.safetensors.index.json",
           R"({"weight_map":{"w1":"model-00001-of-00008.safetensors",
                             "w2":"model-00002-of-00008.safetensors"}})");
  expect_refused({one, two}, {"model-00003-of-00008.safetensors is missing"}, ErrorCode::not_found);
  blobs_["model.safetensors.index.json"] =
      R"({"weight_map":{"w1":"model-00001-of-00008.safetensors",
                        "w2":"model-00002-of-00008.safetensors",
                        "w5":"model-00005-of-00008.safetensors",
                        "w6":"model-00006-of-00008.safetensors",
                        "w7":"model-00007-of-00008.safetensors",
                        "w8":"model-00008-of-00008.safetensors"}})";
  EXPECT_EQ(unite({one, two}).layout->files().size(), 6u) << "the index needs no others";
}

TEST_F(PartUnionTest, WithoutWeightsTheyDoNotFollowAVersionThatHasSome) {
  FoundPart one = part_of(1, 2, {}), two = part_of(2, 2, {});
  one.record.snapshot = two.record.snapshot = true;
  add_blob(one, "config.json", "{}");
  expect_refused({one, two}, {"no weights in any part", "version 1 has some", "--run"});
  FoundPart tokenizer = part_with(2, 2, layout_of_large("tokenizer.json"));
  FoundPart large = part_with(2, 2, layout_of_large("pytorch_model.bin"));
  tokenizer.record.snapshot = large.record.snapshot = true;
  expect_refused({one, tokenizer}, {"no weights in any part"});
  EXPECT_EQ(unite({one, large}).layout->files().size(), 1u) << "by --include";
  add_blob(two, "adapter.bin", "x");  // by --include
  EXPECT_EQ(unite({one, two}).blobs.size(), 2u);
  two.record.blobs.clear();
  parent_ = layout_of({});
  EXPECT_EQ(unite({one, two}).blobs.size(), 1u) << "there are none to lose";
  parent_ = nullptr;
  EXPECT_EQ(unite({one, two}).blobs.size(), 1u);
}

TEST_F(PartUnionTest, MetadataAreThoseOfAllParts) {
  first_.record.meta = {{"a", "1"}, {"both", "x"}};
  second_.record.meta = {{"b", "2"}, {"both", "x"}};
  EXPECT_EQ(unite({first_, second_}).meta.size(), 3u);
  second_.record.meta["both"] = "y";
  expect_refused({first_, second_}, {"'both'", "part 1", "part 2", "'x'", "'y'"});
}

// ---- delta, snapshot ----

TEST_F(PartUnionTest, IsASnapshotOnlyIfAllPartsAre) {
  first_.record.snapshot = true;
  EXPECT_FALSE(unite({first_, second_}).snapshot);
  second_.record.snapshot = true;
  const PartUnion both = unite({first_, second_});
  EXPECT_TRUE(both.snapshot && both.delta);
  EXPECT_EQ(both.hashes.pieces.size(), 3u);
  second_.record.delta.reset();
  const PartUnion whole = unite({first_, second_});
  EXPECT_TRUE(whole.snapshot && !whole.delta);
  first_.record.snapshot = false;
  expect_refused({first_, second_}, {"part 2", "part 1", "--snapshot", "--run"});
}

TEST_F(PartUnionTest, AFileOfTheParentThatNoPartHasNeedsASnapshot) {
  FoundPart less = part_of(2, 2, {{"a.safetensors", {small_tensor("a"), small_tensor("aa")}}});
  expect_refused({first_, less}, {"c.safetensors", "--snapshot", "--run"});
  first_.record.snapshot = less.record.snapshot = true;
  const PartUnion made = unite({first_, less});
  EXPECT_FALSE(made.delta) << "its packs have the numbers of other tensors";
  EXPECT_TRUE(made.snapshot);
}

TEST_F(PartUnionTest, TwoPartsWithOnePackAreRefused) {
  first_.record.delta->packs = second_.record.delta->packs = {{std::string(32, '1') + "-0"}};
  expect_refused({first_, second_}, {"pack"});
}

TEST_F(PartUnionTest, PartsOfDifferentParentsAreRefused) {
  second_.record.parent_sha256[0] = std::byte{1};
  expect_refused({first_, second_}, {"part 2", "another version 1"});
}

TEST(TableProblem, NamesFileAndTensor) {
  const auto parent = layout_of({{"m.safetensors", {small_tensor("a"), small_tensor("b")}}});
  const auto problem = [&](const std::map<std::string, Tensors>& files) {
    return table_problem(*layout_of(files), *parent);
  };
  EXPECT_EQ(problem({{"m.safetensors", {small_tensor("a"), small_tensor("b")}}}), "");
  EXPECT_EQ(problem({}), "");
  EXPECT_EQ(problem({{"n.safetensors", {small_tensor("a")}}}),
            "n.safetensors is not in the version before");
  EXPECT_EQ(problem({{"m.safetensors", {small_tensor("a")}}}),
            "in m.safetensors the tensor 'b' of the version before is gone, or has another place");
  EXPECT_EQ(problem({{"m.safetensors", {small_tensor("a"), small_tensor("b"), small_tensor("c")}}}),
            "in m.safetensors the tensor 'c' is new");
  EXPECT_EQ(problem({{"m.safetensors", {small_tensor("a"), small_tensor("b", 5)}}}),
            "in m.safetensors the tensor 'b' is BF16 [5], and was BF16 [4]");
}

TEST(CheckPartFiles, RefusesATensorInTwoFiles) {
  std::string message;
  const auto layout =
      layout_of({{"m.safetensors", {small_tensor("a")}}, {"n.safetensors", {small_tensor("a")}}});
  EXPECT_EQ(code_of([&] { check_part_files(*layout); }, &message), ErrorCode::invalid);
  EXPECT_TRUE(contains(message, "'a' is in m.safetensors and in n.safetensors")) << message;
}

}  // namespace
}  // namespace weightfs::test
