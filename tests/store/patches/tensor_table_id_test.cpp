#include "store/patches/tensor_table_id.hpp"

#include <gtest/gtest.h>

#include "store/format/safetensors.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::TestTensor;

struct TableFile {
  std::string path;
  std::vector<TestTensor> tensors;
  std::map<std::string, std::string> metadata = {};
};

TensorTableId id_of_files(const std::vector<TableFile>& files) {
  Checkpoint checkpoint;
  for (TableFile given : files) {
    std::uint64_t data = 0;
    for (TestTensor& tensor : given.tensors) {
      tensor.data.resize(*size_bytes_of(tensor.dtype, tensor.shape));
      data += tensor.data.size();
    }
    CheckpointFile& file = checkpoint.files.emplace_back();
    file.path = given.path;
    file.kind = CheckpointFile::Kind::safetensors;
    file.head = test::make_safetensors(given.tensors, given.metadata);
    file.head.resize(file.head.size() - data);
    file.header = parse_safetensors_header(file.head, given.path);
    file.stamp.size_bytes = file.head.size() + file.header.data_size_bytes;
  }
  return tensor_table_id(*Layout::from_checkpoint(checkpoint));
}

TEST(TensorTableId, DependsOnNamesDtypesShapesAndPlacesOnly) {
  const TestTensor a{"a", Dtype::bf16, {4, 6}, {}}, b{"b", Dtype::f32, {8}, {}};
  const TensorTableId id = id_of_files({{"x", {a, b}}, {"y", {a}}});
  EXPECT_EQ(id_of_files({{"x", {a, b}}, {"y", {a}}}), id);
  EXPECT_EQ(id_of_files({{"x", {a, b}, {{"step", "123456"}}}, {"y", {a}}}), id);

  const TestTensor renamed{"c", Dtype::f32, {8}, {}}, retyped{"b", Dtype::i32, {8}, {}};
  const TestTensor reshaped{"a", Dtype::bf16, {6, 4}, {}}, longer{"b", Dtype::f32, {9}, {}};
  const std::vector<std::vector<TableFile>> others{
      {{"x", {a, renamed}}, {"y", {a}}},     {{"x", {a, retyped}}, {"y", {a}}},
      {{"x", {reshaped, b}}, {"y", {a}}},    {{"x", {a, longer}}, {"y", {a}}},
      {{"x", {a, b}}, {"z", {a}}},           {{"x", {b, a}}, {"y", {a}}},
      {{"x", {a}}, {"y", {a, b}}},           {{"x", {a, b}}},
      {{"x", {a, b}}, {"y", {a}}, {"z", {}}}};
  for (std::size_t i = 0; i < others.size(); i++) EXPECT_NE(id_of_files(others[i]), id) << i;
}

}  // namespace
}  // namespace weightfs
