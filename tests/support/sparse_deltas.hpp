// Sparse deltas, applied as their readers do: the model that tests compare with.  It is independent
// of the code that makes them.
//
// Threads: plain functions.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "store/base/bytes.hpp"
#include "store/format/safetensors.hpp"
#include "store/format/tensor.hpp"
#include "tests/support/random.hpp"
#include "tests/support/repository_builder.hpp"

namespace weightfs::test {

inline SafetensorsHeader header_of_file(const std::string& bytes) {
  const auto size = load_le<std::uint64_t>(as_bytes(bytes).data());
  return parse_safetensors_header(std::string_view(bytes).substr(0, 8 + size), "a test's file");
}

inline std::size_t data_begin(const std::string& bytes) {
  return 8 + static_cast<std::size_t>(load_le<std::uint64_t>(as_bytes(bytes).data()));
}

/// Sets older.flatten()[indices] = values in every tensor that the delta names; or the old values,
/// with `which` ".old", which lead back.
inline Tree apply_sparse_delta(const std::string& delta, Tree tree,
                               const std::string& which = ".values") {
  const std::size_t delta_data = data_begin(delta);
  std::map<std::string, SafetensorsTensor> arrays;
  for (const auto& tensor : header_of_file(delta).tensors) arrays[tensor.name] = tensor;
  std::size_t applied = 0;
  for (auto& [path, bytes] : tree) {
    if (!path.ends_with(".safetensors")) continue;
    for (const SafetensorsTensor& tensor : header_of_file(bytes).tensors) {
      const auto indices = arrays.find(tensor.name + ".indices");
      if (indices == arrays.end()) continue;
      const SafetensorsTensor& values = arrays.at(tensor.name + which);
      applied += arrays.contains(tensor.name + ".old") ? 3 : 2;
      const bool is_wide = indices->second.dtype == Dtype::i64;
      const std::size_t index_bytes = is_wide ? 8 : 4;
      const std::size_t width = bits_of(values.dtype) / 8;
      EXPECT_EQ(indices->second.shape, values.shape) << tensor.name;
      if (bits_of(tensor.dtype) >= 8) {
        EXPECT_EQ(values.dtype, tensor.dtype) << tensor.name;
      }
      std::uint64_t before = 0;
      for (std::uint64_t i = 0; i < values.shape.at(0); i++) {
        const std::byte* at =
            as_bytes(delta).data() + delta_data + indices->second.begin_bytes + i * index_bytes;
        const std::uint64_t index =
            is_wide ? load_le<std::uint64_t>(at) : load_le<std::uint32_t>(at);
        EXPECT_GE(index, before) << tensor.name;
        before = index;
        if ((index + 1) * width > tensor.end_bytes - tensor.begin_bytes) {
          ADD_FAILURE() << tensor.name << ": index " << index << " is behind its end";
          break;
        }
        std::memcpy(bytes.data() + data_begin(bytes) + tensor.begin_bytes + index * width,
                    delta.data() + delta_data + values.begin_bytes + i * width, width);
      }
    }
  }
  EXPECT_EQ(applied, arrays.size()) << "the delta has tensors that the version has not";
  return tree;
}

/// A tensor of every dtype.
inline std::vector<TestTensor> tensors_of_all_dtypes(Random& rng) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i <= static_cast<int>(Dtype::u64); i++) {
    const auto dtype = static_cast<Dtype>(i);
    tensors.push_back(
        random_tensor(std::string(to_string(dtype)) + ".weight", dtype, {400, 24}, rng));
  }
  return tensors;
}

}  // namespace weightfs::test
