// The thread block's dynamic shared memory as one struct: kernels name its parts, and the launch
// asks for sizeof(Shared) bytes.  It begins with anything.
//
// All that a kernel needs to know of the emulator (tests/support/cuda_on_cpu).
#pragma once

#include <cuda_runtime.h>

namespace weightfs::kernels::cuda {

template <typename Shared>
__device__ Shared& dynamic_shared() {
#ifdef CUDA_ON_CPU
  return *static_cast<Shared*>(cuda_on_cpu::scheduler().dynamic_shared());
#else
  extern __shared__ uint4 dynamic_shared_memory[];
  return *reinterpret_cast<Shared*>(dynamic_shared_memory);
#endif
}

}  // namespace weightfs::kernels::cuda
