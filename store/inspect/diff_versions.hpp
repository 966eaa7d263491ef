// Diff versions: what has changed from one version to another, tensor by tensor.  Works from the
// bucket, beside any daemon.
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
  std::uint64_t changed = 0;      // all, if there is nothing of the same size to compare with
  std::uint64_t largest_ulp = 0;  // 0 if there is nothing to compare with
};

/// Compares two versions tensor by tensor: those of `to` in the order of its layout, then those of
/// `from` that are gone.  `from` may be the later one.  A tensor is found again by its name in the
/// file of the same path, else in the same directory; one that kept its bytes but not its shape is
/// reshaped, not changed.  `scratch`: room for both.
std::vector<TensorDiff> diff_versions(
    History& history, std::uint64_t from, std::uint64_t to, const std::filesystem::path& scratch,
    const Context& context, const Progress& progress,
    const kernels::SharedCoder& coder = kernels::make_cpu_coder());

}  // namespace weightfs
