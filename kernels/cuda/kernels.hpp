// Kernels: every operation on the device, over batches of blocks and chunks.
//
// Pointers that end in _dev are to device memory.  Everything is queued on `stream`; nothing waits
// for it.  Inputs that come from a bucket are untrusted: no input makes a kernel read or write
// outside the ranges of its task.  One thread block works on one coded block (or chunk, for
// hashes); tasks of one call must not overlap in what they write.
//
// Results are identical to those of the scalar reference (kernels/scalar/scalar.hpp), bit for bit.
//
// The sources can also be compiled as C++ and run on the CPU by the emulator in
// tests/support/cuda_on_cpu: kernels are launched by cudaLaunchKernelEx, shared memory comes from
// dynamic_shared.cuh.
//
// Errors: the launch's.  A count of 0 is not an error: nothing is launched.
// Threads: may be called concurrently on different streams.  Format: docs/FORMAT.md, "Blocks" and
// "Patches".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/block/block.hpp"

namespace weightfs::kernels::cuda {

/// The alignment of blocks in device memory; coded bytes may begin anywhere.
inline constexpr std::uint32_t kBlockAlignment = 16;

/// A coded block, or a patch, and the block that it is applied to.
struct DecodeTask {
  const std::uint8_t* coded_dev;
  std::uint8_t* block_dev;   // old elements before, new ones after
  std::uint32_t coded_size;  // bytes; 0 = unchanged
  std::uint32_t elements;    // 1 .. 65,536
  Kind kind;
};

/// Decodes blocks of packs in place (modes same, raw, EF, XR, XS). is_good_dev[i] becomes 1, or 0
/// if block i is malformed; then its elements are unchanged.
cudaError_t decode_blocks(const DecodeTask* tasks_dev, std::uint32_t count,
                          std::uint8_t* is_good_dev, cudaStream_t stream);

/// Applies patches in place (same, EF, DIFF), with the same results.
cudaError_t apply_patches(const DecodeTask* tasks_dev, std::uint32_t count,
                          std::uint8_t* is_good_dev, cudaStream_t stream);

struct Patch {
  const std::uint8_t* patch_dev;
  std::uint32_t size;  // bytes
};

/// The result of a kernel that makes a coded block or a patch.
struct CodedResult {
  std::uint32_t size;     // bytes written to the task's output; 0 = nothing changed
  std::uint32_t changed;  // elements
  std::uint32_t is_good;  // 0: the input is malformed, the output is undefined
};

/// Patches of one block, to be summed.  A single patch with `invert` is inverted.
struct FoldTask {
  const Patch* patches_dev;
  std::uint32_t patch_count;
  std::uint32_t elements;
  Kind kind;
  bool invert;               // negates the sum
  std::uint8_t* folded_dev;  // room for coded_block_bytes_max(kind) bytes
};

/// Folds (and inverts) patches; the result is the canonical patch that patch.hpp describes.
///
/// Requires: scratch_dev has fold_scratch_bytes(count) bytes, aligned to 256.
cudaError_t fold_patches(const FoldTask* tasks_dev, std::uint32_t count, CodedResult* results_dev,
                         void* scratch_dev, cudaStream_t stream);
std::size_t fold_scratch_bytes(std::uint32_t count) noexcept;

/// A block to be encoded against its old elements.
struct EncodeTask {
  const std::uint8_t* old_dev;
  const std::uint8_t* new_dev;
  std::uint8_t* coded_dev;  // room for coded_block_bytes_max(kind) bytes
  std::uint32_t elements;
  Kind kind;
};

/// Encodes blocks for packs.
///
/// Requires: scratch_dev has encode_scratch_bytes(count) bytes, aligned to 256.
cudaError_t encode_blocks(const EncodeTask* tasks_dev, std::uint32_t count,
                          CodedResult* results_dev, void* scratch_dev, cudaStream_t stream);
/// Makes patches, in the same way.
cudaError_t make_patches(const EncodeTask* tasks_dev, std::uint32_t count, CodedResult* results_dev,
                         void* scratch_dev, cudaStream_t stream);
std::size_t encode_scratch_bytes(std::uint32_t count) noexcept;

/// Two blocks to be compared; the outputs have room for `elements` entries.
struct DiffTask {
  const std::uint8_t* old_dev;
  const std::uint8_t* new_dev;
  std::uint16_t* positions_dev;  // ascending
  std::int32_t* differences_dev;
  std::uint32_t elements;
  Kind kind;
};

/// Writes the changes of each block, and their number to counts_dev.
cudaError_t find_changes(const DiffTask* tasks_dev, std::uint32_t count, std::uint32_t* counts_dev,
                         cudaStream_t stream);

/// A chunk to be hashed (XXH3-64).
struct HashTask {
  const std::uint8_t* chunk_dev;  // aligned to kBlockAlignment
  std::uint64_t size;             // bytes
};

cudaError_t hash_chunks(const HashTask* tasks_dev, std::uint32_t count, std::uint64_t* hashes_dev,
                        cudaStream_t stream);

}  // namespace weightfs::kernels::cuda
