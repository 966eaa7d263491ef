// A thread block decodes one coded block; its mode and kind are the same for all threads, so every
// branch on them is uniform.  Checks come first: nothing is written until all of them have passed.
#include "kernels/cuda/kernels.hpp"
#include "kernels/device/dynamic_shared.cuh"
#include "kernels/device/ef.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/raw.cuh"
#include "kernels/device/xr.cuh"

namespace weightfs::kernels::cuda {
namespace {

union DecodeShared {
  EfShared ef;
  XrReadShared xr;
};
static_assert(sizeof(DecodeShared) <= 74 * 1024, "three thread blocks share a multiprocessor");

__device__ bool decode(const DecodeTask& task, DecodeShared& shared) {
  const BlockElements elements{task.block_dev, task.elements, task.kind};
  const std::uint32_t raw_size = 1 + task.elements * (elements.width() / 8);
  if (task.coded_size > raw_size) return false;
  const Mode mode = task.coded_size == 0 ? Mode::same : static_cast<Mode>(task.coded_dev[0]);
  switch (mode) {
    case Mode::same:
      return task.coded_size <= 1;
    case Mode::raw:
      if (task.coded_size != raw_size) return false;
      copy_raw(task.coded_dev, task.coded_size, task.block_dev);
      return true;
    case Mode::ef:
      return decode_ef(task.coded_dev, task.coded_size, task.elements, elements.width(), shared.ef,
                       [&elements](std::uint32_t position, std::uint32_t difference) {
                         elements.move(position, difference);
                       });
    case Mode::xr:
    case Mode::xs:
      return decode_xr(task.coded_dev, task.coded_size, mode == Mode::xs, elements, shared.xr);
    case Mode::diff:
      break;
  }
  return false;
}

__global__ void __launch_bounds__(kThreads, 3)
    decode_kernel(const DecodeTask* __restrict__ tasks_dev,
                  std::uint8_t* __restrict__ is_good_dev) {
  const DecodeTask task = tasks_dev[blockIdx.x];
  const bool is_good = decode(task, dynamic_shared<DecodeShared>());
  if (threadIdx.x == 0) is_good_dev[blockIdx.x] = is_good ? 1 : 0;
}

}  // namespace

cudaError_t decode_blocks(const DecodeTask* tasks_dev, std::uint32_t count,
                          std::uint8_t* is_good_dev, cudaStream_t stream) {
  return launch_blocks(decode_kernel, count, sizeof(DecodeShared), stream, tasks_dev, is_good_dev);
}

}  // namespace weightfs::kernels::cuda
