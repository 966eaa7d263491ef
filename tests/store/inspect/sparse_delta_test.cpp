#include "store/inspect/sparse_delta.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/dispatch/cpu_coder.hpp"
#include "tests/support/random.hpp"
#include "tests/support/sparse_deltas.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;
using test::apply_sparse_delta;
using test::BuildOptions;
using test::error_of;
using test::header_of_file;
using test::make_safetensors;
using test::nudge;
using test::random_tensor;
using test::read_text;
using test::RepositoryBuilder;
using test::TempDir;
using test::TestTensor;
using test::Tree;

using Tensors = std::vector<TestTensor>;

Tree one_file(const Tensors& tensors) { return {{"m.safetensors", make_safetensors(tensors)}}; }

class SparseDelta : public ::testing::Test {
 protected:
  std::string exported(std::uint64_t from, std::uint64_t to) {
    const filesystem::path file = directory_ / ("delta-" + std::to_string(++exported_));
    export_sparse_delta(history_, {from, to}, file, {}, {});
    return read_text(file);
  }

  /// The layout predicted from a version's packs.
  SparseLayout promised(std::uint64_t version) {
    const auto found = history_.get(version, {});
    const auto layout = history_.layout(*found, {});
    const auto changed = find_changed_counts(history_, *found, *layout, {});
    return {*layout, changed.value(), {version - 1, version}};
  }

  void expect_all_pairs() {
    for (std::uint64_t from = 1; from <= builder_.newest(); from++) {
      for (std::uint64_t to = 1; to <= builder_.newest(); to++) {
        SCOPED_TRACE("from " + std::to_string(from) + " to " + std::to_string(to));
        const std::string delta = exported(from, to);
        EXPECT_TRUE(apply_sparse_delta(delta, builder_.tree(from)) == builder_.tree(to));
        if (to != from + 1) continue;
        const SparseLayout layout = promised(to);
        EXPECT_EQ(layout.size_bytes(), delta.size());
        EXPECT_EQ(layout.head(), delta.substr(0, layout.head().size()));
      }
    }
  }

  void expect_refused(const std::string& words) {
    const Error error = error_of([&] { exported(1, 2); });
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }

  test::Random rng_ = test::make_rng();
  TempDir directory_;
  RepositoryBuilder builder_;
  std::unique_ptr<Repository> repository_ = builder_.open();
  History history_{*repository_, nullptr};
  int exported_ = 0;
};

TEST_F(SparseDelta, AppliedToTheOneVersionGivesTheOther) {
  Tensors tensors = test::tensors_of_all_dtypes(rng_);
  Tensors more{random_tensor("large", Dtype::bf16, {1100, 1000}, rng_),
               random_tensor("wide", Dtype::f64, {300'000}, rng_),
               random_tensor("scalar", Dtype::f32, {}, rng_),
               random_tensor("empty", Dtype::bf16, {0, 7}, rng_)};
  for (const double share : {0.0, 0.002, 0.3}) {
    if (share > 0) {
      for (TestTensor& tensor : tensors) nudge(tensor, share, rng_);
      for (TestTensor& tensor : more) {
        if (!tensor.data.empty()) nudge(tensor, share, rng_);
      }
    }
    builder_.add({{"a.safetensors", make_safetensors(tensors)},
                  {"sub/b.safetensors", make_safetensors(more)},
                  {"config.json", "{}"}},
                 {.uploaders = 2, .chunks_per_pack = 3, .all_chunks = share > 0.1});
  }
  expect_all_pairs();
}

TEST_F(SparseDelta, HoldsWholeTensorsWhereEverythingChanged) {
  Tensors tensors = test::tensors_of_all_dtypes(rng_);
  builder_.add(one_file(tensors));
  std::uint64_t bytes = 0;
  for (TestTensor& tensor : tensors) {
    for (std::byte& byte : tensor.data) byte = ~byte;
    const std::uint64_t width = std::max(1U, bits_of(tensor.dtype) / 8);
    bytes += tensor.data.size() + tensor.data.size() / width * 4;
  }
  builder_.add(one_file(tensors));
  expect_all_pairs();
  const std::string delta = exported(1, 2);
  EXPECT_EQ(delta.size() - test::data_begin(delta), bytes);
}

TEST_F(SparseDelta, OfVersionsThatAreEqualHasNoTensors) {
  const Tree tree = one_file({random_tensor("x", Dtype::bf16, {100}, rng_)});
  builder_.add(tree);
  builder_.add(tree);
  const std::string delta = exported(1, 2);
  const SafetensorsHeader header = header_of_file(delta);
  EXPECT_TRUE(header.tensors.empty());
  EXPECT_EQ(delta.size(), test::data_begin(delta));
  EXPECT_EQ(header.metadata.at("changed_params"), "[]");
  EXPECT_EQ(promised(2).size_bytes(), delta.size());
}

TEST_F(SparseDelta, SaysWhatTrlSays) {
  Tensors tensors{random_tensor("a", Dtype::bf16, {10}, rng_),
                  random_tensor("b\"\n", Dtype::f32, {10}, rng_),
                  random_tensor("same", Dtype::f32, {20}, rng_)};
  builder_.add(one_file(tensors));
  for (std::size_t i = 0; i < 6; i++) tensors[0].data[i] ^= std::byte{1};  // 3 elements
  tensors[1].data[4] ^= std::byte{1};
  builder_.add(one_file(tensors));
  const SafetensorsHeader header = header_of_file(exported(1, 2));
  EXPECT_EQ(header.metadata,
            (std::map<std::string, std::string>{{"format", "sparse_weight_patch"},
                                                {"version", "1"},
                                                {"sparse", "True"},
                                                {"model_version", "2"},
                                                {"prev_model_version", "1"},
                                                {"num_changed_params", "2"},
                                                {"total_changed_elements", "4"},
                                                {"total_elements", "40"},
                                                {"sparsity", "0.9"},
                                                {"changed_params", R"(["a","b\"\n"])"}}));
  std::vector<std::string> names;
  for (const auto& tensor : header.tensors) names.push_back(tensor.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"a.indices", "b\"\n.indices", "b\"\n.values", "a.values"}));
}

TEST_F(SparseDelta, TellsTensorsWithConfusingNamesApart) {
  Tensors tensors{random_tensor("x", Dtype::bf16, {500}, rng_),
                  random_tensor("x.indices", Dtype::i32, {500}, rng_),
                  random_tensor("x.values", Dtype::bf16, {500}, rng_)};
  builder_.add(one_file(tensors));
  for (TestTensor& tensor : tensors) nudge(tensor, 0.1, rng_);
  builder_.add(one_file(tensors));
  expect_all_pairs();
}

/// A layout of one tensor of bytes; the file does not exist.
std::shared_ptr<const Layout> layout_of_bytes(std::uint64_t size) {
  std::string json = R"({"t":{"dtype":"U8","shape":[)" + std::to_string(size) +
                     R"(],"data_offsets":[0,)" + std::to_string(size) + "]}}";
  std::string bytes = "WFLAYOUT";
  append_le(bytes, std::uint32_t{1});
  append_le(bytes, std::uint32_t{1});
  append_le(bytes, std::uint8_t{0});
  append_le(bytes, std::uint16_t{13});
  bytes += "m.safetensors";
  append_le(bytes, std::uint64_t{8 + json.size()});
  append_le(bytes, std::uint64_t{json.size()});
  bytes += json;
  append_le(bytes, std::uint64_t{8 + json.size() + size});
  return Layout::parse(bytes, "a test's layout");
}

TEST_F(SparseDelta, HasWideIndicesWhereATensorNeedsThem) {
  for (const auto& [size, wide] :
       {std::pair{std::uint64_t{0x7FFFFFFF}, false}, std::pair{std::uint64_t{0x80000000}, true}}) {
    const auto layout = layout_of_bytes(size);
    ChangedCounts changed(layout->chunk_count());
    changed.back() = 5;
    const SparseLayout sparse(*layout, changed, {1, 2});
    EXPECT_EQ(sparse.tensors()[0].wide, wide);
    EXPECT_EQ(sparse.size_bytes(), sparse.head().size() + 5 * (wide ? 9 : 5));
    EXPECT_NE(sparse.head().find(wide ? R"("dtype":"I64")" : R"("dtype":"I32")"),
              std::string::npos);
  }
}

TEST_F(SparseDelta, WideIndicesAreAppliedAsNarrowOnesAre) {
  Tensors tensors{random_tensor("small", Dtype::bf16, {100}, rng_),
                  random_tensor("large", Dtype::f32, {1100, 1000}, rng_)};
  builder_.add(one_file(tensors));
  for (TestTensor& tensor : tensors) nudge(tensor, 0.01, rng_);
  builder_.add(one_file(tensors));
  const SparsePlan plan = make_sparse_plan(history_, {1, 2}, {}, {});
  const Context context;
  const Progress progress;
  SparseDeltaReader reader(plan, *repository_, directory_.path(), kernels::make_cpu_coder(),
                           context, progress);
  const ChangedCounts changed = reader.count();
  const SparseLayout sparse(*plan.to.layout, changed, {1, 2}, OldValues::without, 1000);
  ASSERT_TRUE(sparse.tensors()[1].wide && !sparse.tensors()[0].wide);
  reader.write(sparse, changed, directory_ / "delta");
  EXPECT_TRUE(apply_sparse_delta(read_text(directory_ / "delta"), builder_.tree(1)) ==
              builder_.tree(2));
}

TEST_F(SparseDelta, WithOldValuesLeadsBackToo) {
  Tensors tensors = test::tensors_of_all_dtypes(rng_);
  tensors.push_back(random_tensor("large", Dtype::bf16, {1100, 1000}, rng_));
  builder_.add(one_file(tensors));
  for (TestTensor& tensor : tensors) nudge(tensor, 0.03, rng_);
  builder_.add(one_file(tensors));
  const SparsePlan plan = make_sparse_plan(history_, {1, 2}, {}, {});
  const Context context;
  const Progress progress;
  SparseDeltaReader reader(plan, *repository_, directory_.path(), kernels::make_cpu_coder(),
                           context, progress);
  const ChangedCounts changed = reader.count();
  for (const std::uint64_t narrow_max : {kNarrowElementsMax, std::uint64_t{1000}}) {
    const SparseLayout sparse(*plan.to.layout, changed, {1, 2}, OldValues::with, narrow_max);
    const filesystem::path file = directory_ / std::to_string(narrow_max);
    reader.write(sparse, changed, file);
    const std::string delta = read_text(file);
    EXPECT_EQ(delta.size(), sparse.size_bytes());
    EXPECT_TRUE(apply_sparse_delta(delta, builder_.tree(1)) == builder_.tree(2));
    EXPECT_TRUE(apply_sparse_delta(delta, builder_.tree(2), ".old") == builder_.tree(1));
    // Each array is aligned to its element, as the safetensors package writes it.
    for (const auto& array : test::header_of_file(delta).tensors) {
      EXPECT_EQ(array.begin_bytes % (bits_of(array.dtype) / 8), 0u) << array.name;
    }
  }
}

TEST_F(SparseDelta, RefusesACountThatIsNotTrue) {
  Tensors tensors{random_tensor("x", Dtype::bf16, {1000}, rng_)};
  builder_.add(one_file(tensors));
  nudge(tensors[0], 0.1, rng_);
  builder_.add(one_file(tensors));
  const SparsePlan plan = make_sparse_plan(history_, {1, 2}, {}, {});
  const Context context;
  const Progress progress;
  SparseDeltaReader reader(plan, *repository_, directory_.path(), kernels::make_cpu_coder(),
                           context, progress);
  for (const int wrong : {-1, 1}) {
    ChangedCounts changed = reader.count();
    changed[0] += static_cast<std::uint32_t>(wrong);
    const SparseLayout sparse(*plan.to.layout, changed, {1, 2});
    const Error error = error_of([&] { reader.write(sparse, changed, directory_ / "delta"); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_NE(std::string(error.what()).find("'x'"), std::string::npos) << error.what();
    filesystem::remove(directory_ / "delta");
  }
  const ChangedCounts impossible{1001};
  EXPECT_EQ(error_of([&] {
              SparseLayout(*plan.to.layout, impossible, {1, 2});
            }).code(),
            ErrorCode::corrupt);
}

TEST_F(SparseDelta, RefusesVersionsWithOtherTensors) {
  const Tensors one{random_tensor("x", Dtype::bf16, {6, 4}, rng_)};
  Tensors two = one;
  two.push_back(random_tensor("y", Dtype::bf16, {4}, rng_));
  builder_.add(one_file(one));
  builder_.add(one_file(two));
  expect_refused("'y' in 'm.safetensors' of version 2 has no tensor of the same name");
  const Error removed = error_of([&] { exported(2, 1); });
  EXPECT_EQ(removed.code(), ErrorCode::unsupported);
  EXPECT_NE(std::string(removed.what()).find("is not in version 1"), std::string::npos)
      << removed.what();
  EXPECT_TRUE(filesystem::is_empty(directory_.path()));
}

TEST_F(SparseDelta, RefusesAnotherShapeOrDtype) {
  builder_.add(one_file({random_tensor("x", Dtype::bf16, {6, 4}, rng_)}));
  builder_.add(one_file({random_tensor("x", Dtype::bf16, {4, 6}, rng_)}));
  builder_.add(one_file({random_tensor("x", Dtype::f16, {4, 6}, rng_)}));
  expect_refused("has another shape in version 1");
  EXPECT_EQ(error_of([&] { exported(2, 3); }).code(), ErrorCode::unsupported);
}

TEST_F(SparseDelta, RefusesANameThatTwoTensorsHaveOnlyIfOneChanged) {
  Tensors a{random_tensor("x", Dtype::bf16, {10}, rng_)};
  Tensors b{random_tensor("x", Dtype::bf16, {10}, rng_), random_tensor("y", Dtype::f16, {9}, rng_)};
  const auto add = [&] {
    builder_.add({{"a.safetensors", make_safetensors(a)}, {"b.safetensors", make_safetensors(b)}});
  };
  add();
  nudge(a[0], 0.5, rng_);
  add();
  nudge(b[1], 0.5, rng_);
  add();
  expect_refused("another file of version 2 has a tensor of that name too");
  EXPECT_TRUE(apply_sparse_delta(exported(2, 3), builder_.tree(2)) == builder_.tree(3));
}

TEST_F(SparseDelta, AFileThatIsThereStaysAndNothingIsLeftBeside) {
  builder_.add(one_file({random_tensor("x", Dtype::bf16, {10}, rng_)}));
  test::write_text(directory_ / "there", "mine");
  const Error error = error_of([&] {
    export_sparse_delta(history_, {1, 1}, directory_ / "there", {}, {});
  });
  EXPECT_EQ(error.code(), ErrorCode::exists);
  EXPECT_EQ(test::read_tree(directory_.path()), (Tree{{"there", "mine"}}));
  export_sparse_delta(history_, {1, 1}, directory_ / "new", {}, {});
  EXPECT_EQ(test::read_tree(directory_.path()).size(), 2U);
}

}  // namespace
}  // namespace weightfs
