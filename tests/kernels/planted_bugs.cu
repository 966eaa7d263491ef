// planted_bugs NAME: runs one kernel or host routine with a planted bug, to prove that the emulator
// and the sanitizers see what they are trusted to see.  tests/CMakeLists.txt holds the message by
// which each must be caught; "not caught" is printed where nothing was noticed.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/device/dynamic_shared.cuh"
#include "tests/kernels/cuda_check.hpp"

namespace weightfs::cuda_check {
namespace {

using kernels::cuda::dynamic_shared;

constexpr unsigned kThreads = 128;
constexpr unsigned kAllLanes = 0xFFFFFFFF;

struct Sums {
  unsigned of_warp[kThreads / 32];
};

__device__ unsigned warp_sum(unsigned value) {
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    value += __shfl_down_sync(kAllLanes, value, distance);
  }
  return value;
}

__global__ void missing_barrier(unsigned* out_dev) {
  Sums& sums = dynamic_shared<Sums>();
  const unsigned sum = warp_sum(threadIdx.x);
  if (threadIdx.x % 32 == 0) sums.of_warp[threadIdx.x / 32] = sum;
  // A __syncthreads() belongs here.
  if (threadIdx.x == 0) {
    *out_dev = sums.of_warp[0] + sums.of_warp[1] + sums.of_warp[2] + sums.of_warp[3];
  }
}

__global__ void missing_warp_barrier(unsigned* out_dev) {
  unsigned* const values = dynamic_shared<unsigned[kThreads]>();
  values[threadIdx.x] = threadIdx.x;
  // A __syncwarp() belongs here.
  const unsigned neighbour = values[threadIdx.x ^ 1];
  __syncthreads();
  if (threadIdx.x == 7) *out_dev = neighbour;
}

__global__ void shared_not_cleared(unsigned* out_dev) {
  unsigned& total = dynamic_shared<unsigned>();
  atomicAdd(&total, 1);  // nobody has set it to 0
  __syncthreads();
  if (threadIdx.x == 0) *out_dev = total;
}

__global__ void beyond_static_shared(unsigned* out_dev) {
  __shared__ unsigned of_warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = 1;
  __syncthreads();
  if (threadIdx.x == 0) *out_dev = *(of_warp + blockDim.x / 32);
}

__global__ void beyond_dynamic_shared(unsigned* out_dev) {
  unsigned* const values = dynamic_shared<unsigned[kThreads]>();
  values[threadIdx.x + 1] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) *out_dev = values[kThreads - 1];
}

__global__ void beyond_global(unsigned* out_dev) { out_dev[threadIdx.x / (kThreads - 1)] = 1; }

__global__ void misaligned_vector(unsigned* out_dev) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(dynamic_shared<unsigned[kThreads]>());
  if (threadIdx.x == 0) *out_dev = reinterpret_cast<const uint4*>(bytes + 8)->x;
}

__global__ void divergent_barrier(unsigned* out_dev) {
  if (threadIdx.x < 100) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  *out_dev = 1;
}

__global__ void return_before_barrier(unsigned* out_dev) {
  if (threadIdx.x >= 100) return;
  __syncthreads();
  *out_dev = 1;
}

__global__ void lane_does_not_come(unsigned* out_dev) {
  if (threadIdx.x % 32 < 20) *out_dev = __ballot_sync(kAllLanes, 1);
}

__global__ void different_collectives(unsigned* out_dev) {
  if (threadIdx.x % 2 == 0) {
    *out_dev = __ballot_sync(kAllLanes, 1);
  } else {
    __syncwarp();
  }
}

__global__ void reads_absent_lane(unsigned* out_dev) {
  if (threadIdx.x < 16) *out_dev = __shfl_sync(0x0000FFFF, threadIdx.x, 20);
}

__global__ void set_to_one(unsigned* out_dev) { *out_dev = 1; }

cudaLaunchConfig_t one_block(std::size_t shared_bytes, cudaStream_t stream = nullptr) {
  cudaLaunchConfig_t config{};
  config.gridDim = 1;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return config;
}

/// Launches one block and returns what it wrote. A macro, so that messages name the kernel.
#define RUN(kernel, shared_bytes)                                     \
  [] {                                                                \
    DeviceArray<unsigned> out_dev(1);                                 \
    const cudaLaunchConfig_t config = one_block(shared_bytes);        \
    require(cudaLaunchKernelEx(&config, kernel, out_dev.data_dev())); \
    return out_dev.download()[0];                                     \
  }()

void expect(unsigned expected, unsigned result) {
  if (result == expected) return;
  throw std::runtime_error("wrong result: " + std::to_string(result) + ", not " +
                           std::to_string(expected));
}

void host_reads_device_memory() {
  DeviceArray<unsigned> out_dev(1);
  std::printf("%u\n", *out_dev.data_dev());
}

void host_memory_as_argument() {
  unsigned on_host = 0;
  const cudaLaunchConfig_t config = one_block(0);
  require(cudaLaunchKernelEx(&config, set_to_one, &on_host));
}

void forgotten_synchronisation() {
  DeviceArray<unsigned> out_dev(1);
  cudaStream_t stream = nullptr;
  unsigned* pinned = nullptr;
  require(cudaStreamCreate(&stream));
  require(cudaMallocHost(&pinned, sizeof(unsigned)));
  const cudaLaunchConfig_t config = one_block(0, stream);
  require(cudaLaunchKernelEx(&config, set_to_one, out_dev.data_dev()));
  require(cudaMemcpyAsync(pinned, out_dev.data_dev(), sizeof(unsigned), cudaMemcpyDeviceToHost,
                          stream));
  // A cudaStreamSynchronize(stream) belongs here.
  const unsigned result = *pinned;
  require(cudaStreamDestroy(stream));
  require(cudaFreeHost(pinned));
  expect(1, result);
}

struct Bug {
  const char* name;
  void (*show)();
};

constexpr std::size_t kArrayBytes = kThreads * sizeof(unsigned);
constexpr Bug kBugs[] = {
    {"missing_barrier", [] { expect(8128, RUN(missing_barrier, sizeof(Sums))); }},
    {"missing_warp_barrier", [] { expect(6, RUN(missing_warp_barrier, kArrayBytes)); }},
    {"shared_not_cleared", [] { expect(kThreads, RUN(shared_not_cleared, sizeof(unsigned))); }},
    {"beyond_static_shared", [] { RUN(beyond_static_shared, 0); }},
    {"beyond_dynamic_shared", [] { RUN(beyond_dynamic_shared, kArrayBytes); }},
    {"beyond_global", [] { RUN(beyond_global, 0); }},
    {"misaligned_vector", [] { RUN(misaligned_vector, kArrayBytes); }},
    {"divergent_barrier", [] { RUN(divergent_barrier, 0); }},
    {"return_before_barrier", [] { RUN(return_before_barrier, 0); }},
    {"lane_does_not_come", [] { RUN(lane_does_not_come, 0); }},
    {"different_collectives", [] { RUN(different_collectives, 0); }},
    {"reads_absent_lane", [] { RUN(reads_absent_lane, 0); }},
    {"host_reads_device_memory", host_reads_device_memory},
    {"host_memory_as_argument", host_memory_as_argument},
    {"forgotten_synchronisation", forgotten_synchronisation},
    {"shared_limit_not_raised", [] { RUN(set_to_one, 64 << 10); }},
};

int run(const char* name) {
  for (const Bug& bug : kBugs) {
    if (std::strcmp(bug.name, name) != 0) continue;
    for (unsigned seed = 1; seed <= 50; ++seed) {
      cuda_on_cpu::reseed(seed);
      try {
        bug.show();
      } catch (const std::exception& error) {
        std::printf("seed %u: %s\n", seed, error.what());
        return 1;
      }
    }
    std::puts("not caught");
    return 0;
  }
  return 2;
}

}  // namespace
}  // namespace weightfs::cuda_check

int main(int argc, char** argv) { return argc == 2 ? weightfs::cuda_check::run(argv[1]) : 2; }
