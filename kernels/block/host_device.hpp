// WEIGHTFS_HOST_DEVICE: marks what both the host and the device may call.  Nothing to compilers
// that know no CUDA.
#pragma once

#ifdef __CUDACC__
#define WEIGHTFS_HOST_DEVICE __host__ __device__
#else
#define WEIGHTFS_HOST_DEVICE
#endif
