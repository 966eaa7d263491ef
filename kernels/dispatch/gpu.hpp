// GPU: the chunk coder that uses a CUDA device.
//
// A call borrows a lane, which is a stream with its own pinned and device buffers: it copies the
// batch to the device, runs the kernels, copies the results back and waits.  With two or more lanes
// and as many calling threads, the copies of one batch overlap with the kernels of another.
//
// Used only on request (`--gpu N`), since the engine owns the device.  If the device fails, is full
// or disappears, the CPU does the work instead: results are the same, and on_failure reports it.
// The CPU repeats a failed call as a whole, and later calls try the device again.  It is given up
// for good if it no longer answers, after three failed calls in a row, and if it is distrusted.
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
  std::string why_not;  // why it cannot be used; empty: it may be
};

/// Devices of this machine, by number.  If there are none, `why` says why: no toolkit at build
/// time, no driver, no device.
struct GpuDevices {
  std::vector<GpuDevice> devices;
  std::string why;
};
/// Uses no memory of theirs: what only a try can tell, make_gpu_coder() finds.
GpuDevices find_gpus();

struct GpuOptions {
  int device = 0;
  unsigned lanes = 2;                              // at least 1; fewer if the device is too full
  std::size_t lane_bytes = std::size_t{64} << 20;  // of device memory, and of pinned memory, per
                                                   // lane; at least what the largest job needs (20
                                                   // MiB)
  /// Called with a sentence that says what failed, from any thread: for the first failure after
  /// which the device is tried again, and when it is given up.
  std::function<void(std::string_view why, bool is_given_up)> on_failure = nullptr;
};

/// Always returns a working coder; if the device cannot be used at all, it calls on_failure (given
/// up) and returns make_cpu_coder().
std::unique_ptr<ChunkCoder> make_gpu_coder(const GpuOptions& options);

}  // namespace weightfs::kernels
