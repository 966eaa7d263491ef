// Launch: one thread block for each task.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {

/// The shared memory that a thread block may use without an opt-in.
inline constexpr std::size_t kSharedBytesDefault = 48 * 1024;

/// Thread blocks of a launch: three on each multiprocessor of the largest devices.  Each processes
/// several tasks and has its own scratch memory.
inline constexpr std::uint32_t kConcurrent = 400;

inline std::uint32_t thread_blocks(std::uint32_t count) noexcept {
  return count < kConcurrent ? count : kConcurrent;
}

/// Queues `count` thread blocks of kThreads threads; does nothing for 0.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_blocks(void (*kernel)(Parameters...), std::uint32_t count,
                          std::size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
  if (count == 0) return cudaSuccess;
  if (shared_bytes > kSharedBytesDefault) {
    const cudaError_t raised = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (raised != cudaSuccess) return raised;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = count;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace weightfs::kernels::cuda
