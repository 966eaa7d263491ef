// A thread block hashes one chunk, in tiles of 32 blocks of the hash.  All warps sum the
// contributions of the stripes of each block to the accumulators, four blocks per warp at a time;
// then warp 0 processes the sums of the tile in order, while the others are one tile ahead.
//
// A lane loads 16 bytes, which contribute to one pair of accumulators.  Eight lanes have addends of
// the same pair and sum them by halves: at each step a lane gives away the sums that it will not
// end with.
#include "kernels/block/xxh3.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/device/dynamic_shared.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/threads.cuh"

namespace weightfs::kernels::cuda {
namespace {

constexpr std::uint32_t kWarpBlocks = 4;  // that a warp sums at a time
constexpr std::uint32_t kTileBlocks = kWarps * kWarpBlocks;
constexpr std::uint32_t kSums = 2 * kWarpBlocks;  // per lane: two accumulators in each block
static_assert(kSums == 8, "as many as lanes that have addends of the same pair");

struct HashShared {
  std::uint64_t added[2][kTileBlocks][xxh3::kAccumulators];  // sums for accumulator i in block b
  std::uint64_t accumulators[xxh3::kAccumulators];
};

/// The secret for what a lane loads: stripes lane() / 4 and 8 + lane() / 4, pair lane() % 4.
struct LaneKeys {
  std::uint64_t even[2], odd[2];

  __device__ LaneKeys() {
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t at = 8 * (8 * half + lane() / 4) + 16 * (lane() % 4);
      even[half] = xxh3::secret(at);
      odd[half] = xxh3::secret(at + 8);
    }
  }
};

__device__ std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}

/// Leaves in sums[0] the total of sums[i] over the eight lanes of the same lane() % 4, where i is
/// lane() / 4 with its bits reversed.  Called by the whole warp.
__device__ std::uint32_t reduce_by_halves(std::uint64_t (&sums)[kSums]) {
  std::uint32_t index = 0;
  for (std::uint32_t kept = kSums / 2, distance = 16; kept > 0; kept /= 2, distance /= 2) {
    const bool is_upper = (lane() & distance) != 0;
    for (std::uint32_t i = 0; i < kSums / 2; ++i) {
      if (i >= kept) continue;
      const std::uint64_t given = is_upper ? sums[i] : sums[kept + i];
      const std::uint64_t own = is_upper ? sums[kept + i] : sums[i];
      sums[i] = own + __shfl_xor_sync(kAllLanes, given, static_cast<int>(distance));
    }
    if (is_upper) index += kept;
  }
  return index;
}

/// Sums kWarpBlocks blocks from `from_dev` on, of which `count` exist.  Called by the whole warp.
__device__ void add_blocks(const std::uint8_t* from_dev, std::uint32_t count, const LaneKeys& keys,
                           std::uint64_t (*added)[xxh3::kAccumulators]) {
  uint4 loaded[kWarpBlocks][2];
  for (std::uint32_t b = 0; b < kWarpBlocks; ++b) {
    const auto* const words =
        reinterpret_cast<const uint4*>(from_dev + std::size_t{b} * xxh3::kBlockBytes);
    for (std::uint32_t half = 0; half < 2; ++half) {
      loaded[b][half] = b < count ? words[32 * half + lane()] : uint4{};
    }
  }
  std::uint64_t sums[kSums] = {};
  for (std::uint32_t b = 0; b < kWarpBlocks; ++b) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint64_t even = joined(loaded[b][half].x, loaded[b][half].y);
      const std::uint64_t odd = joined(loaded[b][half].z, loaded[b][half].w);
      sums[2 * b] += xxh3::addend(even, odd, keys.even[half]);
      sums[2 * b + 1] += xxh3::addend(odd, even, keys.odd[half]);
    }
  }
  const std::uint32_t index = reduce_by_halves(sums);
  added[index / 2][2 * (lane() % 4) + index % 2] = sums[0];
}

/// The accumulators after all whole blocks: lane i < 8 of warp 0 returns accumulator i.  Called by
/// the whole block.
__device__ std::uint64_t accumulate_blocks(const HashTask& task, HashShared& shared) {
  const LaneKeys keys;
  const std::size_t blocks = xxh3::whole_blocks(task.size);
  const std::uint32_t i = lane() % xxh3::kAccumulators;
  std::uint64_t accumulator = xxh3::first_accumulator(i);
  std::uint32_t buffer = 0;
  for (std::size_t tile = 0; tile < blocks; tile += kTileBlocks, buffer ^= 1) {
    const auto there = static_cast<std::uint32_t>(min(blocks - tile, std::size_t{kTileBlocks}));
    const std::uint32_t first = warp() * kWarpBlocks;
    if (first < there) {
      add_blocks(task.chunk_dev + (tile + first) * xxh3::kBlockBytes, there - first, keys,
                 &shared.added[buffer][first]);
    }
    __syncthreads();
    if (warp() != 0) continue;
    std::uint64_t next = shared.added[buffer][0][i];  // read one block ahead of the dependency
                                                      // chain
    for (std::uint32_t b = 0; b < there; ++b) {
      const std::uint64_t added = next;
      if (b + 1 < there) next = shared.added[buffer][b + 1][i];
      accumulator = xxh3::scrambled(accumulator + added, i);
    }
  }
  return accumulator;
}

/// Adds what follows the whole blocks.  Called by warp 0; lane i < 8 returns accumulator i.
__device__ std::uint64_t accumulate_rest(const HashTask& task, std::uint64_t accumulator) {
  const std::uint32_t i = lane() % xxh3::kAccumulators;
  const auto add = [&](const std::uint8_t* stripe, std::size_t secret_at) {
    accumulator += xxh3::addend(xxh3::read<std::uint64_t>(stripe + 8 * i),
                                xxh3::read<std::uint64_t>(stripe + 8 * (i ^ 1)),
                                xxh3::secret(secret_at + 8 * i));
  };
  const std::uint8_t* const rest =
      task.chunk_dev + xxh3::whole_blocks(task.size) * xxh3::kBlockBytes;
  for (std::size_t s = 0; s < xxh3::left_stripes(task.size); ++s) {
    add(rest + xxh3::kStripeBytes * s, 8 * s);
  }
  add(task.chunk_dev + task.size - xxh3::kStripeBytes, xxh3::kLastStripeSecret);
  return accumulator;
}

__global__ void __launch_bounds__(kThreads)
    hash_chunks_kernel(const HashTask* __restrict__ tasks_dev,
                       std::uint64_t* __restrict__ hashes_dev) {
  auto& shared = dynamic_shared<HashShared>();
  const HashTask task = tasks_dev[blockIdx.x];
  if (task.size <= xxh3::kShortBytesMax) {
    if (threadIdx.x == 0) {
      hashes_dev[blockIdx.x] =
          xxh3::hash_short(task.chunk_dev, static_cast<std::size_t>(task.size));
    }
    return;
  }
  const std::uint64_t after_blocks = accumulate_blocks(task, shared);
  if (warp() != 0) return;
  const std::uint64_t accumulator = accumulate_rest(task, after_blocks);
  if (lane() < xxh3::kAccumulators) shared.accumulators[lane()] = accumulator;
  __syncwarp();
  if (lane() != 0) return;
  std::uint64_t sum = 0;
  for (std::uint32_t pair = 0; pair < xxh3::kAccumulators / 2; ++pair) {
    sum += xxh3::merged(shared.accumulators[2 * pair], shared.accumulators[2 * pair + 1], pair);
  }
  hashes_dev[blockIdx.x] = xxh3::finished(sum, task.size);
}

}  // namespace

cudaError_t hash_chunks(const HashTask* tasks_dev, std::uint32_t count, std::uint64_t* hashes_dev,
                        cudaStream_t stream) {
  return launch_blocks(hash_chunks_kernel, count, sizeof(HashShared), stream, tasks_dev,
                       hashes_dev);
}

}  // namespace weightfs::kernels::cuda
