// GPU: every operation on the device as a ratio to a device copy of the same elements, and the
// whole pipeline as a ratio to pinned copies over PCIe.  Run by scripts/gpu.sh.
//
//     gpu_bench [--blocks N]         N blocks of bf16 (default 4096: 512 MiB); needs 12 buffers
//
// Prints Markdown.  A ratio compares the best rounds of one run; GB/s count one buffer of plain
// elements, so a copy of 2 GB/s reads and writes 2 GB/s each.  Weights are normal with deviation
// 0.02, and change as under Adam: all by about the learning rate, so small ones change most often.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/resources.hpp"
#include "kernels/dispatch/gpu.hpp"

namespace weightfs::kernels::cuda {
namespace {

constexpr Kind kKind = Kind::bf16;
constexpr std::size_t kBytes = block_bytes(kKind);  // of a block
constexpr std::size_t kSlot = kBytes + 256;         // of a coded one
constexpr std::uint32_t kBlocksMin = 8 * kChunkBlocks;
constexpr std::uint32_t kFolded = 8;
constexpr int kRounds = 7;

struct Density {
  const char* name;
  float rate;  // deviation of the update
};
constexpr Density kDensities[] = {{"0.36 %", 7.3e-8F}, {"1.2 %", 2.95e-7F}, {"3.4 %", 1.0e-6F}};
constexpr Density kUsual = kDensities[1];

// ---- data ---------------------------------------------------------------------------------------

__device__ std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Normally distributed, decided by `number` and `stream`.
__device__ float normal(std::uint64_t number, unsigned stream) {
  const std::uint64_t bits = mixed(number * 16 + stream);
  const float u = (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F;
  const float v = static_cast<float>(bits & 0xFFFFFF) * 0x1p-24F;
  return sqrtf(-2 * logf(u)) * cospif(2 * v);
}

__device__ std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// Weights after `version` updates.
__global__ void make_weights(std::uint16_t* weights_dev, std::uint64_t count, float rate,
                             unsigned version) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    float weight = 0.02F * normal(i, 0);
    for (unsigned v = 1; v <= version; ++v) weight += rate * normal(i, v);
    weights_dev[i] = to_bf16(weight);
  }
}

__global__ void count_differences(const uint4* a_dev, const uint4* b_dev, std::uint64_t count,
                                  unsigned long long* different_dev) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const uint4 a = a_dev[i], b = b_dev[i];
    if (a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w) atomicAdd(different_dev, 1ULL);
  }
}

// ---- device memory and time ---------------------------------------------------------------------

template <typename Value>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count), memory_(count * sizeof(Value)) {}
  explicit Array(const std::vector<Value>& values) : Array(values.size()) {
    check(cudaMemcpy(dev(), values.data(), count_ * sizeof(Value), cudaMemcpyHostToDevice),
          "copying tasks");
  }
  [[nodiscard]] Value* dev() const { return reinterpret_cast<Value*>(memory_.data_dev()); }
  [[nodiscard]] std::vector<Value> download() const {
    std::vector<Value> values(count_);
    check(cudaMemcpy(values.data(), dev(), count_ * sizeof(Value), cudaMemcpyDeviceToHost),
          "copying results");
    return values;
  }

 private:
  std::size_t count_;
  DeviceBuffer memory_;
};

using Work = std::function<void()>;

/// Milliseconds on the device of the best round; `before` is not counted.
float best_ms(const Work& before, const Work& work) {
  cudaEvent_t start = nullptr, end = nullptr;
  check(cudaEventCreate(&start), "making an event");
  check(cudaEventCreate(&end), "making an event");
  float best = std::numeric_limits<float>::max();
  for (int round = 0; round < kRounds; ++round) {
    before();
    check(cudaEventRecord(start), "timing");
    work();
    check(cudaEventRecord(end), "timing");
    check(cudaEventSynchronize(end), "waiting for a kernel");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, end), "timing");
    best = std::min(best, ms);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return best;
}

void nothing() {}

// ---- kernels ------------------------------------------------------------------------------------

class KernelBench {
 public:
  explicit KernelBench(std::uint32_t blocks)
      : blocks_(blocks),
        size_(blocks * kBytes),
        old_(size_),
        new_(size_),
        work_(size_),
        slots_(blocks * kSlot) {
    copy_ms_ = best_ms(nothing, [&] { copy(work_, old_); });
    row("device copy", copy_ms_, size_, "");
  }

  void run() {
    make(old_, kUsual, 0);
    make(new_, kUsual, 1);
    diff();
    hash();
    for (const Density& density : kDensities) {
      make(new_, density, 1);
      code(density);
      patch(density);
    }
    fold();
  }

  [[nodiscard]] bool is_right() const { return is_right_; }

 private:
  void row(const std::string& what, float ms, std::size_t bytes, const char* goal) const {
    // The copy of as many bytes: smaller batches are held to their share of it.
    const double copy = copy_ms_ * static_cast<double>(bytes) / static_cast<double>(size_);
    std::printf("| %s | %.0f | %.2f | %s |\n", what.c_str(), static_cast<double>(bytes) / ms / 1e6,
                copy / ms, goal);
    std::fflush(stdout);
  }

  void copy(const Array<std::uint8_t>& to, const Array<std::uint8_t>& from) const {
    check(cudaMemcpyAsync(to.dev(), from.dev(), size_, cudaMemcpyDeviceToDevice), "copying");
  }

  void make(const Array<std::uint8_t>& weights, const Density& density, unsigned version) const {
    make_weights<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(weights.dev()), size_ / 2,
                                density.rate, version);
    check(cudaGetLastError(), "making weights");
  }

  void expect_new(const char* what) {
    Array<unsigned long long> different(std::vector<unsigned long long>{0});
    count_differences<<<1024, 256>>>(reinterpret_cast<const uint4*>(work_.dev()),
                                     reinterpret_cast<const uint4*>(new_.dev()), size_ / 16,
                                     different.dev());
    check(cudaGetLastError(), "comparing");
    const unsigned long long count = different.download()[0];
    if (count == 0) return;
    std::printf("| WRONG: %s, %llu of %zu vectors differ | | | |\n", what, count, size_ / 16);
    is_right_ = false;
  }

  [[nodiscard]] std::uint32_t elements() const { return kBlockElements; }

  void diff() {
    Array<std::uint16_t> positions(size_ / 2);
    Array<std::int32_t> differences(size_ / 2);
    Array<std::uint32_t> counts(blocks_);
    std::vector<DiffTask> tasks(blocks_);
    for (std::size_t b = 0; b < blocks_; ++b)
      tasks[b] = {old_.dev() + b * kBytes,
                  new_.dev() + b * kBytes,
                  positions.dev() + b * kBlockElements,
                  differences.dev() + b * kBlockElements,
                  elements(),
                  kKind};
    const Array<DiffTask> tasks_dev(tasks);
    const float ms = best_ms(nothing, [&] {
      check(find_changes(tasks_dev.dev(), blocks_, counts.dev(), nullptr), "find_changes");
    });
    row("diff, 1.2 %", ms, size_, "0.85");
  }

  void hash() {
    const std::size_t chunk = chunk_bytes(kKind), chunks = size_ / chunk;
    std::vector<HashTask> tasks(chunks);
    for (std::size_t c = 0; c < chunks; ++c) tasks[c] = {old_.dev() + c * chunk, chunk};
    const Array<HashTask> tasks_dev(tasks);
    const Array<std::uint64_t> hashes(chunks);
    const float ms = best_ms(nothing, [&] {
      check(hash_chunks(tasks_dev.dev(), static_cast<std::uint32_t>(chunks), hashes.dev(), nullptr),
            "hash_chunks");
    });
    row("hash", ms, size_, "");
  }

  using Encode = cudaError_t (*)(const EncodeTask*, std::uint32_t, CodedResult*, void*,
                                 cudaStream_t);

  struct Coded {
    float ms = 0;
    std::vector<CodedResult> results = {};
    std::size_t bytes = 0, changed = 0;
  };

  Coded encode_with(Encode encode) const {
    std::vector<EncodeTask> tasks(blocks_);
    for (std::size_t b = 0; b < blocks_; ++b)
      tasks[b] = {old_.dev() + b * kBytes, new_.dev() + b * kBytes, slots_.dev() + b * kSlot,
                  elements(), kKind};
    const Array<EncodeTask> tasks_dev(tasks);
    const Array<CodedResult> results(blocks_);
    const Array<std::uint8_t> scratch(encode_scratch_bytes(blocks_));
    Coded coded{.ms = best_ms(nothing, [&] {
                  check(encode(tasks_dev.dev(), blocks_, results.dev(), scratch.dev(), nullptr),
                        "encoding");
                })};
    coded.results = results.download();
    for (const CodedResult& result : coded.results) {
      coded.bytes += result.size;
      coded.changed += result.changed;
    }
    return coded;
  }

  using Decode = cudaError_t (*)(const DecodeTask*, std::uint32_t, std::uint8_t*, cudaStream_t);

  float decode_with(Decode decode, const Coded& coded) const {
    std::vector<DecodeTask> tasks(blocks_);
    for (std::size_t b = 0; b < blocks_; ++b)
      tasks[b] = {slots_.dev() + b * kSlot, work_.dev() + b * kBytes, coded.results[b].size,
                  elements(), kKind};
    const Array<DecodeTask> tasks_dev(tasks);
    const Array<std::uint8_t> good(blocks_);
    return best_ms(
        [&] { copy(work_, old_); },
        [&] { check(decode(tasks_dev.dev(), blocks_, good.dev(), nullptr), "decoding"); });
  }

  void code(const Density& density) {
    const Coded coded = encode_with(encode_blocks);
    row(std::string("encode with diff, ") + density.name, coded.ms, size_, "");
    const float ms = decode_with(decode_blocks, coded);
    expect_new("decode");
    const double elements_all = static_cast<double>(size_) / 2;
    char what[128];
    std::snprintf(what, sizeof what, "decode + apply in place, %.2f %% (%.2f b/change)",
                  100 * static_cast<double>(coded.changed) / elements_all,
                  8 * static_cast<double>(coded.bytes) / static_cast<double>(coded.changed));
    row(what, ms, size_, "0.5");
  }

  void patch(const Density& density) {
    const Coded coded = encode_with(make_patches);
    row(std::string("make patches, ") + density.name, coded.ms, size_, "");
    const float ms = decode_with(apply_patches, coded);
    expect_new("apply");
    row(std::string("apply EF in place, ") + density.name, ms, size_, "");
  }

  /// Versions 0 to 8 of a part of the blocks; each slot of the whole holds one patch.
  void fold() {
    const std::uint32_t blocks = blocks_ / kFolded;
    const std::size_t room = blocks * kSlot;
    KernelBench part(blocks, copy_ms_ * static_cast<float>(blocks) / static_cast<float>(blocks_));
    std::vector<Patch> patches(std::size_t{blocks} * kFolded);
    std::size_t bytes = 0;
    for (unsigned v = 0; v < kFolded; ++v) {
      part.make(part.old_, kUsual, v);
      part.make(part.new_, kUsual, v + 1);
      const Coded coded = part.encode_with(make_patches);
      check(cudaMemcpy(slots_.dev() + v * room, part.slots_.dev(), room, cudaMemcpyDeviceToDevice),
            "keeping patches");
      for (std::size_t b = 0; b < blocks; ++b)
        patches[b * kFolded + v] = {slots_.dev() + v * room + b * kSlot, coded.results[b].size};
      bytes += coded.bytes;
    }
    part.fold_into_one(patches, bytes);
    is_right_ = is_right_ && part.is_right_;
  }

  KernelBench(std::uint32_t blocks, float copy_ms)
      : blocks_(blocks),
        size_(blocks * kBytes),
        old_(size_),
        new_(size_),
        work_(size_),
        slots_(blocks * kSlot),
        copy_ms_(copy_ms) {}

  void fold_into_one(const std::vector<Patch>& patches, std::size_t patch_bytes) {
    const Array<Patch> patches_dev(patches);
    std::vector<FoldTask> tasks(blocks_);
    for (std::size_t b = 0; b < blocks_; ++b)
      tasks[b] = {patches_dev.dev() + b * kFolded, kFolded, elements(), kKind, false,
                  slots_.dev() + b * kSlot};
    const Array<FoldTask> tasks_dev(tasks);
    const Array<CodedResult> results(blocks_);
    const Array<std::uint8_t> scratch(std::max<std::size_t>(fold_scratch_bytes(blocks_), 1));
    Coded folded{
        .ms = best_ms(nothing, [&] {
          check(fold_patches(tasks_dev.dev(), blocks_, results.dev(), scratch.dev(), nullptr),
                "fold_patches");
        })};
    folded.results = results.download();
    make(old_, kUsual, 0);
    decode_with(apply_patches, folded);  // new_ still holds version 8
    expect_new("fold");
    char what[128];
    std::snprintf(what, sizeof what, "fold of 8 patches, 1.2 %% each (patches at %.0f GB/s)",
                  static_cast<double>(patch_bytes) / folded.ms / 1e6);
    row(what, folded.ms, size_, "one pass");
  }

  std::uint32_t blocks_;
  std::size_t size_;
  Array<std::uint8_t> old_, new_, work_, slots_;
  float copy_ms_ = 0;
  bool is_right_ = true;
};

// ---- the pipeline -------------------------------------------------------------------------------

double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best_seconds(const Work& work) {
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < 3; ++round) best = std::min(best, seconds_of(work));
  return best;
}

/// Pinned copies up and down at the same time.
double pinned_seconds(std::size_t up, std::size_t down) {
  const PinnedBuffer from(up), to(down);
  const DeviceBuffer device(up), source(down);
  const Stream first, second;
  return best_seconds([&] {
    check(cudaMemcpyAsync(device.data_dev(), from.data(), up, cudaMemcpyHostToDevice, first.get()),
          "copying up");
    check(cudaMemcpyAsync(to.data(), source.data_dev(), down, cudaMemcpyDeviceToHost, second.get()),
          "copying down");
    check(cudaStreamSynchronize(first.get()), "waiting");
    check(cudaStreamSynchronize(second.get()), "waiting");
  });
}

/// Batches of a few chunks, by as many threads as the store would use.
template <typename Job>
void in_batches(ChunkCoder& coder, void (ChunkCoder::*work)(std::span<Job>), std::vector<Job>& jobs,
                unsigned threads) {
  constexpr std::size_t kBatch = 8;
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> pool;
  for (unsigned t = 0; t < threads; ++t)
    pool.emplace_back([&] {
      for (std::size_t at = next.fetch_add(kBatch); at < jobs.size(); at = next.fetch_add(kBatch))
        (coder.*work)(std::span(jobs).subspan(at, std::min(kBatch, jobs.size() - at)));
    });
}

bool bench_pipeline(std::uint32_t blocks) {
  const std::size_t size = blocks * kBytes, chunk = chunk_bytes(kKind);
  std::vector<std::byte> old_bytes(size), new_bytes(size), made(size);
  {
    const Array<std::uint8_t> weights(size);
    for (unsigned version = 0; version < 2; ++version) {
      make_weights<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(weights.dev()), size / 2,
                                  kUsual.rate, version);
      check(cudaMemcpy((version == 0 ? old_bytes : new_bytes).data(), weights.dev(), size,
                       cudaMemcpyDeviceToHost),
            "making weights");
    }
  }
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 2U, 8U);
  bool has_failed = false;
  const auto coder = make_gpu_coder(
      {.lanes = threads, .on_failure = [&](std::string_view why, bool) {
         has_failed = true;
         std::printf("| WRONG: %.*s | | | |\n", static_cast<int>(why.size()), why.data());
       }});

  std::vector<EncodeJob> encodes(size / chunk);
  for (std::size_t c = 0; c < encodes.size(); ++c) {
    encodes[c].kind = kKind;
    encodes[c].old_chunk = ByteSpan(old_bytes).subspan(c * chunk, chunk);
    encodes[c].new_chunk = ByteSpan(new_bytes).subspan(c * chunk, chunk);
  }
  const double encode =
      best_seconds([&] { in_batches(*coder, &ChunkCoder::encode, encodes, threads); });

  std::vector<CodedChunk> steps(encodes.size());
  std::vector<DecodeJob> decodes(encodes.size());
  for (std::size_t c = 0; c < decodes.size(); ++c) {
    steps[c] = {encodes[c].lengths, encodes[c].coded};
    decodes[c].kind = kKind;
    decodes[c].old_chunk = encodes[c].old_chunk;
    decodes[c].steps = {&steps[c], 1};
    decodes[c].new_chunk = std::span(made).subspan(c * chunk, chunk);
  }
  const double decode =
      best_seconds([&] { in_batches(*coder, &ChunkCoder::decode, decodes, threads); });

  const double gb = static_cast<double>(size) / 1e9;
  const double both = pinned_seconds(size, size), up = pinned_seconds(2 * size, size / 64);
  std::printf(
      "\n| from host to host, %u threads | GB/s | pinned copies: GB/s | ratio |\n"
      "|---|---|---|---|\n",
      threads);
  std::printf("| encode, verify and hash, 1.2 %% | %.1f | %.1f | %.2f |\n", gb / encode, gb / up,
              up / encode);
  std::printf("| decode, apply and hash, 1.2 %% | %.1f | %.1f | %.2f |\n", gb / decode, gb / both,
              both / decode);
  return !has_failed && made == new_bytes;
}

int run(std::uint32_t blocks) {
  const GpuDevices found = find_gpus();
  if (found.devices.empty()) {
    std::printf("Nothing ran: %s\n", found.why.c_str());
    return 77;
  }
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  std::printf("%s, %s, driver for CUDA %d.%d, runtime %d.%d; %u blocks of bf16\n\n",
              found.devices[0].name.c_str(), date, driver / 1000, driver % 1000 / 10,
              runtime / 1000, runtime % 1000 / 10, blocks);
  std::printf("| on the device | GB/s | to a device copy | goal |\n|---|---|---|---|\n");
  bool is_right = false;
  {
    KernelBench bench(blocks);
    bench.run();
    is_right = bench.is_right();
  }
  is_right = bench_pipeline(blocks) && is_right;
  std::printf("\n%s\n", is_right ? "All results are right." : "WRONG RESULTS");
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace weightfs::kernels::cuda

int main(int argc, char** argv) {
  using namespace weightfs::kernels::cuda;
  std::uint32_t blocks = 4096;
  if (argc == 3 && std::strcmp(argv[1], "--blocks") == 0)
    blocks = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  else if (argc != 1) {
    std::fputs("usage: gpu_bench [--blocks N]\n", stderr);
    return 2;
  }
  blocks = std::max(blocks / kBlocksMin * kBlocksMin, kBlocksMin);
  try {
    return run(blocks);
  } catch (const CudaFailure& failure) {
    std::printf("\nFailed: %s (%s)\n", failure.why.c_str(), failure.doing.c_str());
  } catch (const std::exception& error) {
    std::printf("\nFailed: %s\n", error.what());
  }
  return 1;
}
