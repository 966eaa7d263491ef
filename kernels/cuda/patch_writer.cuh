// Patch writer: makes a patch from an old and a new block.
//
// Format: docs/FORMAT.md, "Patches".  Its twin on the host: make_patch() in
// kernels/dispatch/patch.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kernels.hpp"
#include "kernels/device/bit_output.cuh"
#include "kernels/device/compare.cuh"
#include "kernels/device/ef_writer.cuh"
#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

struct PatchShared {
  RankedBits changed, exceptions;
  WarpSums warp_sums;
  Stage stage;
};

/// Whether a coded block is short enough to be preferred to the plain elements.
__device__ inline bool is_short_enough(std::uint32_t bytes, std::uint32_t plain_bytes) {
  return bytes != kCannotExpress && 8 * bytes <= 7 * plain_bytes;
}

/// Writes the mode byte, followed by the bits that element_at(i) returns for each element.  Called
/// by the whole block.
template <typename Bits, typename ElementAt>
__device__ void write_plain(Mode mode, std::uint32_t count, std::uint8_t* to_dev,
                            ElementAt element_at) {
  constexpr std::uint32_t kPerWord = 4 / sizeof(Bits);
  if (threadIdx.x == 0) to_dev[0] = static_cast<std::uint8_t>(mode);
  for (std::uint32_t i = threadIdx.x; i < divide_up(count, kPerWord); i += kThreads) {
    const std::uint32_t there = min(count - kPerWord * i, kPerWord);
    std::uint32_t word = 0;
    for (std::uint32_t k = 0; k < there; ++k) {
      word |= std::uint32_t{element_at(kPerWord * i + k)} << (8 * sizeof(Bits) * k);
    }
    store_bytes(to_dev + 1 + 4 * i, word, there * static_cast<std::uint32_t>(sizeof(Bits)));
  }
}

/// Writes the patch of this change to `to_dev`, which has room for the longest coded block.  Called
/// by the whole block; `shared` can be reused after the next barrier.
template <typename Element>
__device__ CodedResult write_patch(const BlockPair<Element>& pair, std::uint8_t* to_dev,
                                   PatchShared& shared) {
  using Bits = typename Element::Bits;
  const std::uint32_t changed =
      find_changed(pair, shared.changed, shared.warp_sums, [](const auto&, std::uint32_t) {});
  if (changed == 0) return {0, 0, 1};
  EfWriter ef(shared.changed, shared.exceptions, shared.warp_sums,
              [&](std::uint32_t i) { return pair.difference(i); });
  const EfPlan plan = ef.plan(changed, pair.count);
  const std::uint32_t plain_bytes = 1 + pair.count * static_cast<std::uint32_t>(sizeof(Bits));
  if (!is_short_enough(plan.block_bytes, plain_bytes)) {
    write_plain<Bits>(Mode::diff, pair.count, to_dev, [&](std::uint32_t i) {
      return static_cast<Bits>(static_cast<std::uint32_t>(pair.difference(i)));
    });
    return {plain_bytes, changed, 1};
  }
  const BitOutput output = begin_output(to_dev, plan.block_bytes, shared.stage);
  ef.write(plan, output);
  __syncthreads();
  end_output(output, to_dev, plan.block_bytes);
  return {plan.block_bytes, changed, 1};
}

}  // namespace weightfs::kernels::cuda
