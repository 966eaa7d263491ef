// DiffSummary: how much two runs of elements differ.
#pragma once

#include <cstdint>

namespace weightfs::kernels {

/// What `weightfs diff` prints about a tensor.
struct DiffSummary {
  std::uint64_t changed = 0;      // elements whose bits differ
  std::uint64_t largest_ulp = 0;  // largest |difference| of the order-preserving integers
};

}  // namespace weightfs::kernels
