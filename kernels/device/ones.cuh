// Ones: iterates over the set bits of a RankedBits by a thread block, one thread per word, so that
// a sparse set costs little and a dense one keeps all threads busy.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/planes.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// A one bit.
struct Listed {
  std::uint32_t at;            // its position
  std::uint32_t index;         // how many ones precede it
  std::uint32_t previous_end;  // position after the previous one; 0 if there is none
};

/// Calls visit(Listed) for the ones of word i, in order.  Requires `before`.
template <typename Visit>
__device__ void visit_word(const RankedBits& bits, std::uint32_t i, Visit visit) {
  std::uint32_t word = bits.words[i];
  if (word == 0) return;
  std::uint32_t index = bits.before[i];
  std::uint32_t previous_end = index == 0 ? 0 : bits.select(index - 1) + 1;
  for (; word != 0; word &= word - 1) {
    const std::uint32_t at = 32 * i + static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
    visit(Listed{at, index, previous_end});
    ++index;
    previous_end = at + 1;
  }
}

/// Calls visit(Listed) for every one, in any order.  Called by the whole block; requires `before`.
template <typename Visit>
__device__ void visit_all(const RankedBits& bits, Visit visit) {
  for (std::uint32_t i = threadIdx.x; i < RankedBits::kWords; i += kThreads) {
    visit_word(bits, i, visit);
  }
}

/// Calls visit(Listed, amount, sum) for every one: amount = amount_of(Listed), and sum is the sum
/// of the amounts of the preceding ones.  Called by the whole block; requires `before`.
template <typename AmountOf, typename Visit>
__device__ void visit_with_sums(const RankedBits& bits, WarpSums& warp_sums, AmountOf amount_of,
                                Visit visit) {
  std::uint32_t base = 0;
  for (std::uint32_t tile = 0; tile < RankedBits::kWords; tile += kThreads) {
    const std::uint32_t i = tile + threadIdx.x;
    std::uint32_t own = 0;
    visit_word(bits, i, [&](const Listed& one) { own += amount_of(one); });
    std::uint32_t tile_sum = 0;
    std::uint32_t sum = base + block_exclusive_sum(own, warp_sums, tile_sum);
    visit_word(bits, i, [&](const Listed& one) {
      const std::uint32_t amount = amount_of(one);
      visit(one, amount, sum);
      sum += amount;
    });
    base += tile_sum;
  }
}

/// Sets `chosen` to the ones of `bits` for which is_chosen(at) is true.  Returns their number.
/// Called by the whole block; complete on return.
template <typename IsChosen>
__device__ std::uint32_t choose_ones(const RankedBits& bits, RankedBits& chosen,
                                     WarpSums& warp_sums, IsChosen is_chosen) {
  for (std::uint32_t i = threadIdx.x; i < RankedBits::kWords; i += kThreads) {
    std::uint32_t kept = 0;
    for (std::uint32_t word = bits.words[i]; word != 0; word &= word - 1) {
      const std::uint32_t bit = static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
      kept |= std::uint32_t{is_chosen(32 * i + bit)} << bit;
    }
    chosen.words[i] = kept;
  }
  __syncthreads();
  return chosen.count(warp_sums);
}

}  // namespace weightfs::kernels::cuda
