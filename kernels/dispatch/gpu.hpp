// GPU: the chunk coder that uses a CUDA device.
//
// A call borrows a lane, which is a stream with its own pinned and device buffers: it copies the
// batch to the device, runs the kernels, copies the results back and waits.  With two or more lanes
// and as many calling threads, the copies of one batch overlap with the kernels of another.
//
// Used only on request (`--gpu N`), since the engine owns the device.  If the device fails, is full
// or disappears, the CPU does the work instead: results are the same, and on_failure reports it
// once.  The CPU repeats a failed call as a whole; later calls try the device again, unless it no
// longer answers.
//
// Built without a CUDA toolkit, no device is found.
//
// Threads: as ChunkCoder.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/chunk_coder.hpp"

namespace weightfs::kernels {

struct GpuDevice {
  int number = 0;
  std::string name;  // "NVIDIA H200"
  std::size_t memory_bytes = 0;
};

/// Devices of this machine, by number.  If there are none, `why` says why: no toolkit at build
/// time, no driver, no device.
struct GpuDevices {
  std::vector<GpuDevice> devices;
  std::string why;
};
GpuDevices find_gpus();

struct GpuOptions {
  int device = 0;
  unsigned lanes = 2;                              // at least 1; fewer if the device is too full
  std::size_t lane_bytes = std::size_t{64} << 20;  // of device memory, and of pinned memory, per
                                                   // lane; at least what the largest job needs (17
                                                   // MiB)
  /// Called at most once, from any thread, with a sentence that says what failed.
  std::function<void(std::string_view why)> on_failure = nullptr;
};

/// Always returns a working coder; if the device cannot be used at all, it calls on_failure and
/// returns make_cpu_coder().
std::unique_ptr<ChunkCoder> make_gpu_coder(const GpuOptions& options);

}  // namespace weightfs::kernels
