// A thread block applies one patch, or folds the patches of one task.
//
// Folding sums the differences in scratch memory, in an integer of the element's width for each
// element.  Adding a patch to the sums means applying it to a block whose elements are plain
// integers.  The sums become a patch as the change from a block of zeros; the change to zeros is
// the inverse.
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/patch_writer.cuh"
#include "kernels/device/diff_patch.cuh"
#include "kernels/device/dynamic_shared.cuh"
#include "kernels/device/ef.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/device/launch.cuh"

namespace weightfs::kernels::cuda {
namespace {

/// An integer for each element of a block, as wide as the elements.
struct alignas(256) Sums {
  std::uint8_t bytes[block_bytes(Kind::f32)];
};

union FoldShared {
  EfShared ef;
  PatchShared patch;
};

/// Applies one patch in place; a refused one changes nothing.  Called by the whole block; `shared`
/// can be reused after the next barrier.
__device__ bool apply_patch(const Patch& patch, const BlockElements& elements, EfShared& shared) {
  const std::uint32_t dense_size = 1 + elements.count * (elements.width() / 8);
  if (patch.size > dense_size) return false;
  const Mode mode = patch.size == 0 ? Mode::same : static_cast<Mode>(patch.patch_dev[0]);
  switch (mode) {
    case Mode::same:
      return patch.size <= 1;
    case Mode::ef:
      return decode_ef(patch.patch_dev, patch.size, elements.count, elements.width(), shared,
                       [&elements](std::uint32_t position, std::uint32_t difference) {
                         elements.move(position, difference);
                       });
    case Mode::diff:
      if (patch.size != dense_size) return false;
      elements.visit_type([&](auto element) {
        move_all<decltype(element)>(patch.patch_dev, patch.size, elements.bytes);
      });
      return true;
    case Mode::raw:
    case Mode::xr:
    case Mode::xs:
      break;
  }
  return false;
}

__global__ void __launch_bounds__(kThreads, 4)
    apply_kernel(const DecodeTask* __restrict__ tasks_dev, std::uint8_t* __restrict__ is_good_dev) {
  const DecodeTask task = tasks_dev[blockIdx.x];
  const bool is_good =
      apply_patch({task.coded_dev, task.coded_size}, {task.block_dev, task.elements, task.kind},
                  dynamic_shared<EfShared>());
  if (threadIdx.x == 0) is_good_dev[blockIdx.x] = is_good ? 1 : 0;
}

/// Sums the patches.  Called by the whole block; complete on return.  Returns false if one is
/// malformed.
__device__ bool add_patches(const FoldTask& task, const BlockElements& sums, EfShared& shared) {
  const std::uint32_t vectors = divide_up(sums.count * (sums.width() / 8), 16);
  for (std::uint32_t i = threadIdx.x; i < vectors; i += kThreads) {
    reinterpret_cast<uint4*>(sums.bytes)[i] = make_uint4(0, 0, 0, 0);
  }
  __syncthreads();
  for (std::uint32_t i = 0; i < task.patch_count; ++i) {
    if (!apply_patch(task.patches_dev[i], sums, shared)) return false;
    __syncthreads();
  }
  return true;
}

/// Writes the sums, or their negatives, as a patch.  Called by the whole block.
__device__ CodedResult write_sums(const FoldTask& task, const BlockElements& sums,
                                  const Sums& zeros, PatchShared& shared) {
  return sums.visit_type([&](auto element) {
    using Element = decltype(element);
    const auto* const none = reinterpret_cast<const typename Element::Bits*>(zeros.bytes);
    const auto* const all = reinterpret_cast<const typename Element::Bits*>(sums.bytes);
    const BlockPair<Element> pair{task.invert ? all : none, task.invert ? none : all, sums.count};
    return write_patch(pair, task.folded_dev, shared);
  });
}

__global__ void __launch_bounds__(kThreads, 3)
    fold_kernel(const FoldTask* __restrict__ tasks_dev, std::uint32_t count,
                CodedResult* __restrict__ results_dev, const Sums* zeros_dev, Sums* sums_dev) {
  auto& shared = dynamic_shared<FoldShared>();
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const FoldTask task = tasks_dev[i];
    const BlockElements sums{sums_dev[blockIdx.x].bytes, task.elements, task.kind, true};
    CodedResult result{};
    if (add_patches(task, sums, shared.ef)) {
      result = write_sums(task, sums, *zeros_dev, shared.patch);
    }
    if (threadIdx.x == 0) results_dev[i] = result;
    __syncthreads();  // `shared` and the sums can be reused
  }
}

}  // namespace

cudaError_t apply_patches(const DecodeTask* tasks_dev, std::uint32_t count,
                          std::uint8_t* is_good_dev, cudaStream_t stream) {
  return launch_blocks(apply_kernel, count, sizeof(EfShared), stream, tasks_dev, is_good_dev);
}

std::size_t fold_scratch_bytes(std::uint32_t count) noexcept {
  return (1 + std::size_t{thread_blocks(count)}) * sizeof(Sums);
}

cudaError_t fold_patches(const FoldTask* tasks_dev, std::uint32_t count, CodedResult* results_dev,
                         void* scratch_dev, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  auto* const zeros_dev = static_cast<Sums*>(scratch_dev);
  const cudaError_t zeroed = cudaMemsetAsync(zeros_dev, 0, sizeof(Sums), stream);
  if (zeroed != cudaSuccess) return zeroed;
  return launch_blocks(fold_kernel, thread_blocks(count), sizeof(FoldShared), stream, tasks_dev,
                       count, results_dev, zeros_dev, zeros_dev + 1);
}

}  // namespace weightfs::kernels::cuda
