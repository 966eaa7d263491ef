// WEIGHTFS_HOST_DEVICE: marks functions for both host and device.  Empty for compilers without
// CUDA.
#pragma once

#ifdef __CUDACC__
#define WEIGHTFS_HOST_DEVICE __host__ __device__
#else
#define WEIGHTFS_HOST_DEVICE
#endif
