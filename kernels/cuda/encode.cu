// A thread block encodes one block, in these steps:
//
//   1. Read both blocks: one bit for each changed element, and the histogram of exponents.
//   2. Plan EF: its size follows from the changes alone.
//   3. Read the old block again (from the cache): classes and ranks; sort the changes by them.
//   4. Plan XR and XS: choose z, sizes.
//   5. Write the shortest by the rule of the format, with all threads in parallel.
//
// A patch skips 3 and 4.
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/patch_writer.cuh"
#include "kernels/device/bit_output.cuh"
#include "kernels/device/compare.cuh"
#include "kernels/device/dynamic_shared.cuh"
#include "kernels/device/ef_writer.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/xr_writer.cuh"

namespace weightfs::kernels::cuda {
namespace {

/// Differences of a block, indexed by the position of their element among the members of the
/// classes.
using Differences = std::int32_t[kBlockElements];

struct Histogram {
  std::uint32_t counts[kWarps][kThreads];  // one per warp, to reduce contention
  static_assert(kThreads == 256, "exponents have up to eight bits");
};

struct EncodeShared {
  RankedBits changed;
  union {
    Histogram histogram;  // until ebase is chosen
    XrShared xr;          // then
  };
  WarpSums warp_sums;
  std::uint32_t ebase;
};

/// The encoder's choice of ebase.  Called by the whole block after a barrier; has barriers.
__device__ std::uint32_t choose_ebase(const Histogram& histogram, std::uint32_t elements,
                                      std::uint32_t& ebase, WarpSums& warp_sums) {
  const std::uint32_t exponent = threadIdx.x;
  std::uint32_t own = 0;
  for (std::uint32_t w = 0; w < kWarps; ++w) own += histogram.counts[w][exponent];
  std::uint32_t all = 0;
  const std::uint32_t below = block_exclusive_sum(own, warp_sums, all);
  const bool is_reached = 50 * (below + own) >= 49 * elements;
  if (is_reached && 50 * below < 49 * elements) {
    ebase = exponent < kClasses ? 0 : exponent - (kClasses - 1);
  }
  __syncthreads();
  return ebase;
}

/// Marks the changes of a block and chooses ebase.  Called by the whole block.  Returns the number
/// of changes.
template <typename Element>
__device__ std::uint32_t compare(Kind kind, const BlockPair<Element>& pair, EncodeShared& shared) {
  const ExponentField exponent = exponent_field(kind);
  for (std::uint32_t w = 0; w < kWarps; ++w) shared.histogram.counts[w][threadIdx.x] = 0;
  __syncthreads();
  return find_changed(pair, shared.changed, shared.warp_sums,
                      [&](const auto& eight, std::uint32_t there) {
                        if (exponent.mask == 0) return;
                        for (std::uint32_t i = 0; i < 8; ++i) {
                          if (i >= there) continue;
                          const std::uint32_t e = eight.get(i) >> exponent.shift & exponent.mask;
                          atomicAdd(&shared.histogram.counts[warp()][e], 1U);
                        }
                      });
}

/// Encodes a block against the old one.  Called by the whole block.  Returns its size and number of
/// changes.
template <typename Element>
__device__ CodedResult encode_pair(const EncodeTask& task, const BlockPair<Element>& pair,
                                   EncodeShared& shared, std::int32_t* differences_dev) {
  using Bits = typename Element::Bits;
  const std::uint32_t changed = compare(task.kind, pair, shared);
  if (changed == 0) return {0, 0, 1};
  const auto difference_at = [&](std::uint32_t i) { return pair.difference(i); };
  const ExponentField exponent = exponent_field(task.kind);
  std::uint32_t ebase = 0;
  if (exponent.mask != 0) {
    ebase = choose_ebase(shared.histogram, pair.count, shared.ebase, shared.warp_sums);
  }
  EfWriter ef(shared.changed, shared.xr.lists.exceptions, shared.xr.warp_sums, difference_at);
  const EfPlan ef_plan = ef.plan(changed, pair.count);

  shared.xr.index.build(Classes<Bits>(pair.old_dev, pair.count, exponent, ebase));
  XrWriter xr(shared.xr, differences_dev, Element::kWidth);
  xr.sort(shared.changed, difference_at);
  xr.plan(ebase);

  const std::uint32_t xr_bytes = shared.xr.plan.block_bytes;
  const bool takes_ef = ef_plan.block_bytes != kCannotExpress &&
                        (xr_bytes == kCannotExpress || 15 * ef_plan.block_bytes <= 16 * xr_bytes);
  const std::uint32_t bytes = takes_ef ? ef_plan.block_bytes : xr_bytes;
  const std::uint32_t plain_bytes = 1 + pair.count * static_cast<std::uint32_t>(sizeof(Bits));
  if (!is_short_enough(bytes, plain_bytes)) {
    write_plain<Bits>(Mode::raw, pair.count, task.coded_dev,
                      [&](std::uint32_t i) { return pair.new_dev[i]; });
    return {plain_bytes, changed, 1};
  }
  const BitOutput output = begin_output(task.coded_dev, bytes, shared.xr.lists.stage);
  if (takes_ef) {
    ef.mark_exceptions();
    ef.write(ef_plan, output);
  } else {
    xr.write(output);
  }
  __syncthreads();
  end_output(output, task.coded_dev, bytes);
  return {bytes, changed, 1};
}

__global__ void __launch_bounds__(kThreads, 3)
    encode_kernel(const EncodeTask* __restrict__ tasks_dev, std::uint32_t count,
                  CodedResult* __restrict__ results_dev, Differences* __restrict__ scratch_dev) {
  auto& shared = dynamic_shared<EncodeShared>();
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const EncodeTask task = tasks_dev[i];
    const CodedResult result = with_block_pair(task, [&](const auto& pair) {
      return encode_pair(task, pair, shared, scratch_dev[blockIdx.x]);
    });
    if (threadIdx.x == 0) results_dev[i] = result;
    __syncthreads();  // `shared` can be reused
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    make_patches_kernel(const EncodeTask* __restrict__ tasks_dev,
                        CodedResult* __restrict__ results_dev) {
  auto& shared = dynamic_shared<PatchShared>();
  const EncodeTask task = tasks_dev[blockIdx.x];
  const CodedResult result = with_block_pair(
      task, [&](const auto& pair) { return write_patch(pair, task.coded_dev, shared); });
  if (threadIdx.x == 0) results_dev[blockIdx.x] = result;
}

}  // namespace

cudaError_t encode_blocks(const EncodeTask* tasks_dev, std::uint32_t count,
                          CodedResult* results_dev, void* scratch_dev, cudaStream_t stream) {
  return launch_blocks(encode_kernel, thread_blocks(count), sizeof(EncodeShared), stream, tasks_dev,
                       count, results_dev, static_cast<Differences*>(scratch_dev));
}

cudaError_t make_patches(const EncodeTask* tasks_dev, std::uint32_t count, CodedResult* results_dev,
                         void* /*scratch_dev*/, cudaStream_t stream) {
  return launch_blocks(make_patches_kernel, count, sizeof(PatchShared), stream, tasks_dev,
                       results_dev);
}

std::size_t encode_scratch_bytes(std::uint32_t count) noexcept {
  return thread_blocks(count) * sizeof(Differences);
}

}  // namespace weightfs::kernels::cuda
