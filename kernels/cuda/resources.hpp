// Resources: a stream and memory, each owned by one object; and the exception for CUDA errors.
//
// Threads: an object belongs to one thread at a time.
// Errors: constructors throw CudaFailure; destructors ignore errors of cudaFree, which after a
// fatal error only repeat it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace weightfs::kernels::cuda {

/// A failed CUDA call: its purpose ("decoding blocks") and the reason.
struct CudaFailure {
  std::string doing;
  std::string why;
};

inline void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the runtime's last error, which a later call would report
  // The runtime's own message for a missing driver suggests a version problem.
  throw CudaFailure{doing, error == cudaErrorInsufficientDriver
                               ? "there is no NVIDIA driver, or it is older than this CUDA needs"
                               : cudaGetErrorString(error)};
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t size) {
    check(cudaMalloc(&data_dev_, size), "taking device memory");
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_dev_); }

  [[nodiscard]] std::uint8_t* data_dev() const noexcept { return data_dev_; }

 private:
  std::uint8_t* data_dev_ = nullptr;
};

/// Host memory that the device can copy from and to directly.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t size) {
    check(cudaMallocHost(&data_, size), "taking pinned host memory");
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { cudaFreeHost(data_); }

  [[nodiscard]] std::uint8_t* data() const noexcept { return data_; }

 private:
  std::uint8_t* data_ = nullptr;
};

}  // namespace weightfs::kernels::cuda
