// Replaces gpu.cu in a build without a CUDA toolkit: there is no device, and the CPU does the work.
#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/gpu.hpp"

namespace weightfs::kernels {

namespace {

constexpr const char* kWhy = "cuda: this weightfs was built without the CUDA toolkit";

}  // namespace

GpuDevices find_gpus() { return {{}, kWhy}; }

std::unique_ptr<ChunkCoder> make_gpu_coder(const GpuOptions& options) {
  if (options.on_failure) options.on_failure(std::string(kWhy) + "; the CPU does the work", true);
  return make_cpu_coder();
}

}  // namespace weightfs::kernels
