// The thread block's dynamic shared memory as one struct: kernels name its parts, and the launch
// requests sizeof(Shared) bytes.  Its initial content is undefined.
//
// This is the kernels' only dependency on the emulator (tests/support/cuda_on_cpu).
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
