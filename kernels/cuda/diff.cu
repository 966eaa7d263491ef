// A thread block marks the changes of its block as bits and counts them, which gives the place of
// each change in the lists; each thread writes the changes of one word.
#include "kernels/cuda/kernels.hpp"
#include "kernels/device/compare.cuh"
#include "kernels/device/dynamic_shared.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ones.cuh"

namespace weightfs::kernels::cuda {
namespace {

struct DiffShared {
  RankedBits changed;
  WarpSums warp_sums;
};

__global__ void __launch_bounds__(kThreads)
    find_changes_kernel(const DiffTask* __restrict__ tasks_dev,
                        std::uint32_t* __restrict__ counts_dev) {
  auto& shared = dynamic_shared<DiffShared>();
  const DiffTask task = tasks_dev[blockIdx.x];
  const std::uint32_t count = with_block_pair(task, [&](const auto& pair) {
    const std::uint32_t found =
        find_changed(pair, shared.changed, shared.warp_sums, [](const auto&, std::uint32_t) {});
    visit_all(shared.changed, [&](const Listed& change) {
      task.positions_dev[change.index] = static_cast<std::uint16_t>(change.at);
      task.differences_dev[change.index] = pair.difference(change.at);
    });
    return found;
  });
  if (threadIdx.x == 0) counts_dev[blockIdx.x] = count;
}

}  // namespace

cudaError_t find_changes(const DiffTask* tasks_dev, std::uint32_t count, std::uint32_t* counts_dev,
                         cudaStream_t stream) {
  return launch_blocks(find_changes_kernel, count, sizeof(DiffShared), stream, tasks_dev,
                       counts_dev);
}

}  // namespace weightfs::kernels::cuda
