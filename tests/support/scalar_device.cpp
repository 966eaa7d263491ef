// The kernels' entry points (kernels/cuda/kernels.hpp), implemented by the scalar reference: for
// tests of the code around them.  Work is queued on the emulator's streams and accesses the
// emulator's device memory only when it runs, as kernels do.
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/kernels.hpp"
#include "kernels/scalar/scalar.hpp"

namespace weightfs::kernels::cuda {

namespace {

/// Queues a kernel that processes its tasks sequentially.
template <typename Work>
cudaError_t queue(const char* name, std::uint32_t count, cudaStream_t stream, Work work) {
  if (count == 0) return cudaSuccess;
  const cuda_on_cpu::Lock lock;
  if (const cudaError_t error = cuda_on_cpu::injected(name)) return error;
  cuda_on_cpu::runtime().stream(stream).pending.emplace_back([count, work] {
    const cuda_on_cpu::DeviceAccess access;
    for (std::uint32_t i = 0; i < count; ++i) work(i);
  });
  return cudaSuccess;
}

ByteSpan bytes_at(const std::uint8_t* data_dev, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data_dev), size};
}

Scratch& scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace

cudaError_t decode_blocks(const DecodeTask* tasks_dev, std::uint32_t count,
                          std::uint8_t* is_good_dev, cudaStream_t stream) {
  return queue("decode_blocks", count, stream, [=](std::uint32_t i) {
    const DecodeTask& task = tasks_dev[i];
    const ByteSpan block = bytes_at(task.block_dev, task.elements * width_bytes(task.kind));
    std::vector<std::byte> decoded(block.size());
    is_good_dev[i] =
        task.coded_size == 0 ||
        scalar::decode_block(task.kind, block, bytes_at(task.coded_dev, task.coded_size), decoded,
                             scratch());
    if (is_good_dev[i] != 0 && task.coded_size != 0)
      std::copy(decoded.begin(), decoded.end(), reinterpret_cast<std::byte*>(task.block_dev));
  });
}

cudaError_t encode_blocks(const EncodeTask* tasks_dev, std::uint32_t count,
                          CodedResult* results_dev, void* /*scratch_dev*/, cudaStream_t stream) {
  return queue("encode_blocks", count, stream, [=](std::uint32_t i) {
    const EncodeTask& task = tasks_dev[i];
    const std::size_t size = task.elements * width_bytes(task.kind);
    std::vector<std::byte> coded;
    const std::size_t changed = scalar::encode_block(
        task.kind, bytes_at(task.old_dev, size), bytes_at(task.new_dev, size), scratch(), coded);
    std::copy(coded.begin(), coded.end(), reinterpret_cast<std::byte*>(task.coded_dev));
    results_dev[i] = {static_cast<std::uint32_t>(coded.size()), static_cast<std::uint32_t>(changed),
                      1};
  });
}

cudaError_t fold_patches(const FoldTask* tasks_dev, std::uint32_t count, CodedResult* results_dev,
                         void* /*scratch_dev*/, cudaStream_t stream) {
  return queue("fold_patches", count, stream, [=](std::uint32_t i) {
    const FoldTask& task = tasks_dev[i];
    std::vector<ByteSpan> patches;
    for (std::uint32_t k = 0; k < task.patch_count; ++k) {
      const Patch& patch = task.patches_dev[k];
      patches.push_back(bytes_at(patch.patch_dev, patch.size));
    }
    std::vector<std::byte> folded;
    const bool is_good = scalar::fold_patches(task.kind, task.elements, patches, scratch(), folded);
    std::copy(folded.begin(), folded.end(), reinterpret_cast<std::byte*>(task.folded_dev));
    results_dev[i] = {static_cast<std::uint32_t>(folded.size()), 0, is_good ? 1U : 0U};
  });
}

std::size_t fold_scratch_bytes(std::uint32_t count) noexcept { return 1000 * count; }

std::size_t encode_scratch_bytes(std::uint32_t count) noexcept { return 1000 * count; }

cudaError_t hash_chunks(const HashTask* tasks_dev, std::uint32_t count, std::uint64_t* hashes_dev,
                        cudaStream_t stream) {
  return queue("hash_chunks", count, stream, [=](std::uint32_t i) {
    hashes_dev[i] = scalar::hash_chunk(bytes_at(tasks_dev[i].chunk_dev, tasks_dev[i].size));
  });
}

}  // namespace weightfs::kernels::cuda
