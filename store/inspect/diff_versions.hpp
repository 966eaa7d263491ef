// Diff versions: what changed between two versions, tensor by tensor.  Works from the bucket,
// independently of any daemon.
//
// Threads: each call runs its own threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "store/materialize/history.hpp"

namespace weightfs {

struct TensorDiff {
  std::string name, file;
  enum class Change { same, changed, added, removed, reshaped, retyped } change{};
  std::string dtype;
  std::uint64_t elements = 0;     // as the codec sees them: bytes for dtypes without a kind
  std::uint64_t changed = 0;      // all elements, if there is no tensor of the same size to compare
                                  // with
  std::uint64_t largest_ulp = 0;  // 0 if there is no such tensor
};

/// Compares two versions tensor by tensor: first the tensors of `to` in the order of its layout,
/// then the removed tensors of `from`.  `from` may be the later version.  A tensor is matched by
/// its name in the file of the same path, or else in the same directory; one with the same bytes
/// but another shape is reshaped, not changed.  `scratch`: needs room for both versions.
std::vector<TensorDiff> diff_versions(
    History& history, std::uint64_t from, std::uint64_t to, const std::filesystem::path& scratch,
    const Context& context, const Progress& progress,
    const kernels::SharedCoder& coder = kernels::make_cpu_coder());

}  // namespace weightfs
