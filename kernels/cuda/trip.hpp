// Trip: the layout of one trip of a lane to the device and back.
//
// Both buffers have the same layout: an offset means the same place in pinned and in device memory.
// What is copied up is contiguous, and so is what is copied down.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/block/block.hpp"
#include "kernels/cuda/resources.hpp"

namespace weightfs::kernels::cuda {

inline constexpr std::size_t kAlignment = 256;  // of every array; guaranteed by cudaMalloc
inline constexpr std::size_t kArraysMax = 16;   // per trip
inline constexpr unsigned kPackThreads = 256;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

inline std::size_t blocks_of(Kind kind, std::size_t chunk_size) {
  return static_cast<std::size_t>(block_count(kind, chunk_size));
}

/// The number of elements in block `index` of a chunk.
inline std::uint32_t elements_of(Kind kind, std::size_t chunk_size, std::size_t index) {
  const std::size_t left = chunk_size / width_bytes(kind) - index * kBlockElements;
  return static_cast<std::uint32_t>(std::min(left, kBlockElements));
}

/// `count` values at the same offset in both buffers.
template <typename Value>
struct Array {
  std::size_t offset = 0, count = 0;

  [[nodiscard]] std::size_t end() const { return offset + count * sizeof(Value); }
};

/// What a lane has: buffers of one size, and a stream.
struct LaneMemory {
  explicit LaneMemory(std::size_t bytes) : size(bytes), pinned(bytes), device(bytes) {}

  const std::size_t size;
  PinnedBuffer pinned;
  DeviceBuffer device;
  Stream stream;  // to destroy it does not wait; the last user of a lane has
};

/// One trip to the device and back.  Arrays are taken in the order of the layout.
class Trip {
 public:
  explicit Trip(LaneMemory& lane) : lane_(lane) {}

  template <typename Value>
  Array<Value> take(std::size_t count) {
    const Array<Value> array{used_, count};
    used_ = aligned(array.end());
    assert(used_ <= lane_.size);
    return array;
  }

  template <typename Value>
  Value* host(Array<Value> array) const {
    return reinterpret_cast<Value*>(lane_.pinned.data() + array.offset);
  }
  template <typename Value>
  ByteSpan host_bytes(Array<Value> array) const {
    return std::as_bytes(std::span(host(array), array.count));
  }
  template <typename Value>
  Value* dev(Array<Value> array) const {
    return reinterpret_cast<Value*>(lane_.device.data_dev() + array.offset);
  }

  void copy_up(std::size_t begin, std::size_t end) {
    check(cudaMemcpyAsync(lane_.device.data_dev() + begin, lane_.pinned.data() + begin, end - begin,
                          cudaMemcpyHostToDevice, stream()),
          "copying to the device");
  }
  void copy_down(std::size_t begin, std::size_t end) {
    check(cudaMemcpyAsync(lane_.pinned.data() + begin, lane_.device.data_dev() + begin, end - begin,
                          cudaMemcpyDeviceToHost, stream()),
          "copying from the device");
    check(cudaStreamSynchronize(stream()), "waiting for the device");
  }

  [[nodiscard]] cudaStream_t stream() const { return lane_.stream.get(); }

 private:
  LaneMemory& lane_;
  std::size_t used_ = 0;
};

}  // namespace weightfs::kernels::cuda
