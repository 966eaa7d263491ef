// Lane: a stream with buffers, through which one call's jobs travel to the device and back.
//
//     jobs --copy--> pinned --stream--> device: kernels --stream--> pinned --copy--> jobs
//
// A call makes as many trips as its jobs need; each trip copies up once, and down once or twice.
// The device sees only the lane's own buffers, so whatever happens there, only the lane writes to
// the caller's memory.
//
// Bytes may change on the way.  So the host too hashes the chunks that go up to be encoded, and
// what comes down of encoding and decoding; a wrong sum of patches is found when it is used.
//
// Threads: one call at a time; the lane's device is the calling thread's current one.
// Errors: CudaFailure; the jobs' results are then undefined, except what decode() took off them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/block/chunk_coder.hpp"
#include "kernels/cuda/trip.hpp"

namespace weightfs::kernels::cuda {

/// Throws CudaFailure if the kernels cannot run on the current device, which may be another one
/// than they were compiled for.
void check_kernels();

/// Hashes a chunk on the host.
using HashChunk = std::uint64_t (*)(ByteSpan chunk) noexcept;

/// The bytes of a lane that adding up two patches of the largest chunk needs.
std::size_t fold_lane_bytes_min();

class Lane {
 public:
  /// Allocates `bytes` of device memory and of pinned memory, or what the largest job needs if that
  /// is more.
  Lane(std::size_t bytes, HashChunk hash);

  /// As ChunkCoder.  A job that does not decode to its new chunk is a device failure, and so are
  /// bytes that changed on the way.
  void encode(std::span<EncodeJob> jobs);

  /// As ChunkCoder, but also takes what is done off the jobs: old_chunk becomes new_chunk, steps
  /// what is left.  So another coder can go on after a failure, even where jobs are in place.
  /// Bytes that changed on the way down are a device failure.
  void decode(std::span<DecodeJob> jobs);

  /// As ChunkCoder.
  void fold(std::span<FoldJob> jobs);

  /// Waits for everything that is queued.
  /// Returns: false if the device no longer works.
  bool wait() noexcept { return cudaStreamSynchronize(memory_.stream.get()) == cudaSuccess; }

 private:
  void fold_in_parts(FoldJob& job);

  LaneMemory memory_;
  const HashChunk hash_;
};

}  // namespace weightfs::kernels::cuda
