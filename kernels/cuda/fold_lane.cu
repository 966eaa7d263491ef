// The layout of a lane's trips (kernels/cuda/trip.hpp) that add patches up:
//
//     fold   up   [tasks][patches: where each lies][bytes of the patches]
//            down [results], then the used part of [packed]
//            stay [slots: one for each block][scratch]
//
// A task is a block that at least one patch changes.  A job whose patches do not fit into one trip
// takes several: the sum of the first ones is the first patch of the next trip.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/lane.hpp"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/trip.hpp"

namespace weightfs::kernels::cuda {

namespace {

/// Launched with one thread block for each result.
__global__ void pack_sums(const FoldTask* tasks_dev, const CodedResult* results_dev,
                          std::uint8_t* packed_dev) {
  pack_block(results_dev, tasks_dev[blockIdx.x].folded_dev, packed_dev);
}

/// The part of a lane that jobs need; padding between arrays is added in bytes().  A block that no
/// patch changes counts as one that some do.
struct FoldNeed {
  std::size_t blocks = 0, patches = 0, patch_bytes = 0, slot_bytes = 0, packed_bytes = 0;

  void add_chunk(Kind kind, std::size_t chunk_size) {
    const std::size_t count = blocks_of(kind, chunk_size);
    blocks += count;
    slot_bytes += count * aligned(coded_block_bytes_max(kind));
    packed_bytes += count + chunk_size;
  }
  void add_patch(const CodedChunk& patch) {
    patches += patch.lengths.size();
    patch_bytes += patch.coded.size();
  }
  void add(const FoldJob& job) {
    add_chunk(job.kind, job.chunk_bytes);
    for (const CodedChunk& patch : job.patches) add_patch(patch);
  }
  [[nodiscard]] std::size_t bytes() const {
    return blocks * (sizeof(FoldTask) + sizeof(CodedResult)) + patches * sizeof(Patch) +
           patch_bytes + slot_bytes + packed_bytes +
           fold_scratch_bytes(static_cast<std::uint32_t>(blocks)) + kArraysMax * kAlignment;
  }
};

/// True if each length is possible for its block, and they add up to the bytes.
bool is_plausible(const FoldJob& job, const CodedChunk& patch) {
  if (patch.lengths.size() != blocks_of(job.kind, job.chunk_bytes)) return false;
  std::size_t size = 0;
  for (std::size_t i = 0; i < patch.lengths.size(); ++i) {
    const std::uint32_t elements = elements_of(job.kind, job.chunk_bytes, i);
    if (patch.lengths[i] > 1 + elements * width_bytes(job.kind)) return false;
    size += patch.lengths[i];
  }
  return size == patch.coded.size();
}

class FoldTrip {
 public:
  /// Requires: all patches are plausible.
  FoldTrip(LaneMemory& lane, std::span<FoldJob* const> jobs, const FoldNeed& need)
      : trip_(lane), jobs_(jobs) {
    tasks_ = trip_.take<FoldTask>(need.blocks);
    patches_ = trip_.take<Patch>(need.patches);
    bytes_ = trip_.take<std::uint8_t>(need.patch_bytes);
    results_ = trip_.take<CodedResult>(need.blocks);
    packed_ = trip_.take<std::uint8_t>(need.packed_bytes);
    slots_ = trip_.take<std::uint8_t>(need.slot_bytes);
    scratch_ =
        trip_.take<std::uint8_t>(fold_scratch_bytes(static_cast<std::uint32_t>(need.blocks)));
  }

  void run() {
    for (const FoldJob* const job : jobs_) write_job(*job);
    if (!owners_.empty()) {
      trip_.copy_up(0, bytes_.end());
      launch();
      trip_.copy_down(results_.offset, results_.end());
      const std::size_t packed = packed_size();
      if (packed != 0) trip_.copy_down(packed_.offset, packed_.offset + packed);
    }
    read_results();
  }

 private:
  [[nodiscard]] std::uint32_t task_count() const {
    return static_cast<std::uint32_t>(owners_.size());
  }

  void write_job(const FoldJob& job) {
    std::vector<std::size_t> at;  // where the next block's bytes of each patch lie
    for (const CodedChunk& patch : job.patches) {
      if (!patch.coded.empty())
        std::memcpy(trip_.host(bytes_) + byte_count_, patch.coded.data(), patch.coded.size());
      at.push_back(byte_count_);
      byte_count_ += patch.coded.size();
    }
    for (std::size_t block = 0; block < blocks_of(job.kind, job.chunk_bytes); ++block) {
      write_block(job, block, at);
    }
  }

  void write_block(const FoldJob& job, std::size_t block, std::vector<std::size_t>& at) {
    const std::size_t first = patch_count_;
    for (std::size_t i = 0; i < job.patches.size(); ++i) {
      const std::uint32_t length = job.patches[i].lengths[block];
      if (length == 0) continue;
      trip_.host(patches_)[patch_count_++] = {trip_.dev(bytes_) + at[i], length};
      at[i] += length;
    }
    if (patch_count_ == first) return;
    trip_.host(tasks_)[owners_.size()] = {trip_.dev(patches_) + first,
                                          static_cast<std::uint32_t>(patch_count_ - first),
                                          elements_of(job.kind, job.chunk_bytes, block),
                                          job.kind,
                                          false,
                                          trip_.dev(slots_) + slot_};
    slot_ += aligned(coded_block_bytes_max(job.kind));
    owners_.push_back({&job, block});
  }

  void launch() {
    check(fold_patches(trip_.dev(tasks_), task_count(), trip_.dev(results_), trip_.dev(scratch_),
                       trip_.stream()),
          "adding patches");
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(task_count());
    config.blockDim = dim3(kPackThreads);
    config.stream = trip_.stream();
    check(cudaLaunchKernelEx(&config, pack_sums, static_cast<const FoldTask*>(trip_.dev(tasks_)),
                             static_cast<const CodedResult*>(trip_.dev(results_)),
                             trip_.dev(packed_)),
          "packing sums");
  }

  /// The size of all sums.  An impossible size would make us read past the buffer.
  [[nodiscard]] std::size_t packed_size() const {
    std::size_t size = 0;
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      const FoldTask& task = trip_.host(tasks_)[i];
      const CodedResult& result = trip_.host(results_)[i];
      const std::size_t most = result.is_good == 0 ? 0 : 1 + task.elements * width_bytes(task.kind);
      if (result.size > most)
        throw CudaFailure{"adding patches", "the device gave a result that cannot be"};
      size += result.size;
    }
    return size;
  }

  void read_results() const {
    const auto* packed = reinterpret_cast<const std::byte*>(trip_.host(packed_));
    std::size_t task = 0;
    for (FoldJob* const job : jobs_) {
      job->lengths.assign(blocks_of(job->kind, job->chunk_bytes), 0);
      job->folded.clear();
      for (; task < owners_.size() && owners_[task].first == job; ++task) {
        const CodedResult& result = trip_.host(results_)[task];
        job->is_folded = job->is_folded && result.is_good != 0;
        job->lengths[owners_[task].second] = result.size;
        job->folded.insert(job->folded.end(), packed, packed + result.size);
        packed += result.size;
      }
    }
  }

  Trip trip_;
  std::span<FoldJob* const> jobs_;
  std::vector<std::pair<const FoldJob*, std::size_t>> owners_;  // of each task: job, block
  std::size_t patch_count_ = 0, byte_count_ = 0, slot_ = 0;
  Array<FoldTask> tasks_;
  Array<Patch> patches_;
  Array<std::uint8_t> bytes_, packed_, slots_, scratch_;
  Array<CodedResult> results_;
};

/// How many of the job's first patches fit into one trip.
std::size_t fitting_patches(const FoldJob& job, std::span<const CodedChunk> patches,
                            std::size_t lane_bytes, FoldNeed& need) {
  need = {};
  need.add_chunk(job.kind, job.chunk_bytes);
  std::size_t count = 0;
  for (; count < patches.size(); ++count) {
    FoldNeed with = need;
    with.add_patch(patches[count]);
    if (with.bytes() > lane_bytes) break;
    need = with;
  }
  return count;
}

}  // namespace

std::size_t fold_lane_bytes_min() {
  FoldNeed need;
  need.add_chunk(Kind::f32, kChunkBytesMax);
  need.patches = 2 * kChunkBlocks;
  need.patch_bytes = 2 * kChunkBlocks * coded_block_bytes_max(Kind::f32);
  return need.bytes();
}

void Lane::fold(std::span<FoldJob> jobs) {
  std::vector<FoldJob*> good;
  for (FoldJob& job : jobs) {
    job.lengths.clear();
    job.folded.clear();
    job.is_folded = std::ranges::all_of(
        job.patches, [&](const CodedChunk& patch) { return is_plausible(job, patch); });
    if (job.is_folded) good.push_back(&job);
  }
  for (std::span<FoldJob*> rest(good); !rest.empty();) {
    FoldNeed need;
    std::size_t count = 0;
    for (; count < rest.size(); ++count) {
      FoldNeed with = need;
      with.add(*rest[count]);
      if (with.bytes() > memory_.size) break;
      need = with;
    }
    if (count == 0) {
      fold_in_parts(*rest.front());
      count = 1;
    } else {
      FoldTrip(memory_, rest.first(count), need).run();
    }
    rest = rest.subspan(count);
  }
}

void Lane::fold_in_parts(FoldJob& job) {
  std::vector<CodedChunk> left(job.patches.begin(), job.patches.end());
  FoldJob sum;  // of the patches so far; the first of `left` refers to it
  while (true) {
    FoldNeed need;
    const std::size_t count = fitting_patches(job, left, memory_.size, need);
    assert(count == left.size() || count >= 2);
    FoldJob next;
    next.kind = job.kind;
    next.chunk_bytes = job.chunk_bytes;
    next.patches = std::span(left).first(count);
    next.is_folded = true;
    FoldJob* const only = &next;
    FoldTrip(memory_, {&only, 1}, need).run();
    sum = std::move(next);
    if (!sum.is_folded || count == left.size()) break;
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count - 1));
    left.front() = {sum.lengths, sum.folded};
  }
  job.is_folded = sum.is_folded;
  job.lengths = std::move(sum.lengths);
  job.folded = std::move(sum.folded);
}

}  // namespace weightfs::kernels::cuda
