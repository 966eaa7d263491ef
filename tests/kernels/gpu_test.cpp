// The pipeline to the GPU: kernels/dispatch/gpu.cu and its lanes, run by the emulator.  What it
// shares with other coders, chunk_coder_test.cpp holds; here are batches larger than a lane, and
// failures.
#include "kernels/dispatch/gpu.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/hash.hpp"
#include "kernels/dispatch/patch.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

using cuda_on_cpu::runtime;
using test::changed_elements;
using test::random_elements;
using test::Step;

// The scale of the cases: real kernels take a second for what the reference does in a millisecond.
#ifdef WEIGHTFS_REAL_KERNELS
constexpr std::size_t kElementsMax = 3000;
constexpr std::size_t kJobs = 12;
constexpr std::array kFailingCalls = {"pack_blocks", "pack_sums"};
#else
constexpr std::size_t kElementsMax = kChunkBlocks * kBlockElements;
constexpr std::size_t kJobs = 40;
constexpr std::array kFailingCalls = {"cudaSetDevice", "cudaMemcpyAsync", "cudaStreamSynchronize",
                                      "hash_chunks",   "encode_blocks",   "decode_blocks",
                                      "pack_blocks",   "fold_patches",    "pack_sums"};
#endif

/// Chunks of all kinds, some of them equal, with several versions of each.
struct Batch {
  std::vector<Kind> kinds;
  std::vector<std::vector<Bytes>> versions;  // of each chunk

  Batch(std::size_t jobs, std::size_t version_count, test::Random& rng) {
    for (std::size_t i = 0; i < jobs; ++i) {
      const Kind kind = test::kKinds[i % test::kKinds.size()];
      // Most are small, one in eight is of the full size.
      const std::size_t elements = i % 8 == 7 ? kElementsMax : 1 + rng() % (kElementsMax / 16);
      std::vector<Bytes> chunk = {random_elements(kind, elements, rng)};
      for (std::size_t v = 1; v < version_count; ++v)
        chunk.push_back(i % 5 == 4 ? chunk.back()
                                   : changed_elements(kind, chunk.back(), 0.02, Step::few, rng));
      kinds.push_back(kind);
      versions.push_back(std::move(chunk));
    }
  }

  [[nodiscard]] std::vector<EncodeJob> encode_jobs(std::size_t from) const {
    std::vector<EncodeJob> jobs(kinds.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].kind = kinds[i];
      jobs[i].old_chunk = versions[i][from];
      jobs[i].new_chunk = versions[i][from + 1];
    }
    return jobs;
  }
};

void expect_same(const std::vector<EncodeJob>& jobs, const std::vector<EncodeJob>& expected) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(jobs[i].lengths, expected[i].lengths) << i;
    EXPECT_TRUE(jobs[i].coded == expected[i].coded) << i;
    EXPECT_EQ(jobs[i].changed, expected[i].changed) << i;
    EXPECT_EQ(jobs[i].old_hash, expected[i].old_hash) << i;
    EXPECT_EQ(jobs[i].new_hash, expected[i].new_hash) << i;
    EXPECT_TRUE(jobs[i].is_verified) << i;
  }
}

/// Codes a batch both ways.
void expect_codes_as_cpu(ChunkCoder& coder, const Batch& batch) {
  std::vector<EncodeJob> jobs = batch.encode_jobs(0), expected = jobs;
  make_cpu_coder()->encode(expected);
  coder.encode(jobs);
  expect_same(jobs, expected);
}

enum class Where { apart, in_place };

/// Brings every chunk of a batch from its first version to its last one.
void expect_decodes(ChunkCoder& coder, const Batch& batch, Where where = Where::apart) {
  const std::size_t step_count = batch.versions[0].size() - 1, jobs_count = batch.kinds.size();
  std::vector<std::vector<EncodeJob>> coded;
  for (std::size_t v = 0; v < step_count; ++v) {
    coded.push_back(batch.encode_jobs(v));
    make_cpu_coder()->encode(coded.back());
  }
  std::vector<std::vector<CodedChunk>> steps(jobs_count);
  std::vector<Bytes> made;
  std::vector<DecodeJob> jobs(jobs_count);
  for (std::size_t i = 0; i < jobs_count; ++i) {
    for (const auto& step : coded) steps[i].push_back({step[i].lengths, step[i].coded});
    made.push_back(where == Where::in_place ? batch.versions[i][0]
                                            : Bytes(batch.versions[i][0].size()));
  }
  for (std::size_t i = 0; i < jobs_count; ++i)
    jobs[i] = {.kind = batch.kinds[i],
               .old_chunk = where == Where::in_place ? made[i] : batch.versions[i][0],
               .steps = steps[i],
               .new_chunk = made[i]};
  coder.decode(jobs);
  for (std::size_t i = 0; i < jobs_count; ++i) {
    EXPECT_TRUE(jobs[i].is_decoded) << i;
    EXPECT_TRUE(made[i] == batch.versions[i].back()) << i;
    EXPECT_EQ(jobs[i].hash, coded.back()[i].new_hash) << i;
  }
}

/// The patches of a chunk between its versions, made by the reference.
struct Patches {
  Patches(Kind kind, const std::vector<Bytes>& versions) {
    for (std::size_t v = 1; v < versions.size(); ++v) {
      lengths.emplace_back();
      bytes.emplace_back();
      for (std::size_t at = 0; at < versions[v].size(); at += block_bytes(kind)) {
        const std::size_t size = std::min(block_bytes(kind), versions[v].size() - at);
        const std::size_t begin = bytes.back().size();
        make_patch(kind, ByteSpan(versions[v - 1]).subspan(at, size),
                   ByteSpan(versions[v]).subspan(at, size), scratch, bytes.back());
        lengths.back().push_back(static_cast<std::uint32_t>(bytes.back().size() - begin));
      }
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) views.push_back({lengths[i], bytes[i]});
  }

  Scratch scratch;
  std::vector<std::vector<std::uint32_t>> lengths;
  std::vector<Bytes> bytes;
  std::vector<CodedChunk> views;
};

/// Adds the patches of every chunk up, as the CPU does.
void expect_folds_as_cpu(ChunkCoder& coder, const Batch& batch) {
  std::vector<std::unique_ptr<Patches>> patches;
  std::vector<FoldJob> jobs(batch.kinds.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    patches.push_back(std::make_unique<Patches>(batch.kinds[i], batch.versions[i]));
    jobs[i].kind = batch.kinds[i];
    jobs[i].chunk_bytes = batch.versions[i][0].size();
    jobs[i].patches = patches[i]->views;
  }
  std::vector<FoldJob> expected = jobs;
  make_cpu_coder()->fold(expected);
  coder.fold(jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_TRUE(jobs[i].is_folded) << i;
    EXPECT_EQ(jobs[i].lengths, expected[i].lengths) << i;
    EXPECT_TRUE(jobs[i].folded == expected[i].folded) << i;
  }
}

class GpuTest : public testing::Test {
 protected:
  ~GpuTest() override {
    runtime().fault = nullptr;
    runtime().after_copy = nullptr;
    runtime().properties = {};
    EXPECT_TRUE(runtime().allocations.empty()) << "memory was left behind";
    EXPECT_TRUE(runtime().streams.empty()) << "a stream was left behind";
  }

  GpuOptions options() {
    // The emulator fills new memory with random bytes: small lanes, which take one large chunk.
    return {.lane_bytes = 1, .on_failure = [this](std::string_view why, bool is_given_up) {
              ++failures_;
              given_up_ += is_given_up;
              why_ = why;
            }};
  }

  /// Every call of this name fails from the `first`-th on, `count` times.
  static void fail(std::string name, std::size_t first, std::size_t count,
                   cudaError_t error = cudaErrorLaunchFailure) {
    runtime().fault = [=, seen = std::size_t{0}](const char* call) mutable {
      if (name != call) return cudaSuccess;
      const std::size_t number = seen++;
      return number >= first && number - first < count ? error : cudaSuccess;
    };
  }

  test::Random rng_ = test::make_rng();
  std::atomic<int> failures_ = 0;
  std::atomic<int> given_up_ = 0;  // of these
  std::string why_;
};

TEST_F(GpuTest, FindsTheDeviceAndNamesIt) {
  const GpuDevices found = find_gpus();
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(found.devices[0].number, 0);
  EXPECT_EQ(found.devices[0].name, "CUDA on CPU");
  EXPECT_GT(found.devices[0].memory_bytes, 0u);
  EXPECT_EQ(make_gpu_coder(options())->name(), "cuda: CUDA on CPU");
}

TEST_F(GpuTest, SaysWhyThereIsNoDevice) {
  fail("cudaGetDeviceCount", 0, 1, cudaErrorNoDevice);
  const GpuDevices found = find_gpus();
  EXPECT_TRUE(found.devices.empty());
  EXPECT_NE(found.why.find("no CUDA-capable device"), std::string::npos) << found.why;
  fail("cudaGetDeviceCount", 0, 1, cudaErrorInsufficientDriver);
  EXPECT_NE(find_gpus().why.find("no NVIDIA driver"), std::string::npos);
}

TEST_F(GpuTest, CodesMixedBatchesAsTheCpuDoes) {
  const auto coder = make_gpu_coder({.on_failure = options().on_failure});
  expect_codes_as_cpu(*coder, Batch(kJobs, 2, rng_));
  EXPECT_EQ(failures_, 0) << why_;
}

TEST_F(GpuTest, DecodesMixedBatchesOverSeveralSteps) {
  const auto coder = make_gpu_coder(options());
  expect_decodes(*coder, Batch(kJobs, 4, rng_));
  EXPECT_EQ(failures_, 0) << why_;
}

TEST_F(GpuTest, AddsPatchesUpAsTheCpuDoes) {
  const auto coder = make_gpu_coder(options());
  expect_folds_as_cpu(*coder, Batch(kJobs, 4, rng_));
  EXPECT_EQ(failures_, 0) << why_;
}

#ifndef WEIGHTFS_REAL_KERNELS
TEST_F(GpuTest, PatchesThatDoNotFitIntoALaneAreAddedUpInSeveralTrips) {
  const auto coder = make_gpu_coder(options());
  Batch batch(1, 1, rng_);
  batch.kinds[0] = Kind::f32;
  batch.versions[0].clear();
  for (int v = 0; v < 12; ++v)  // nothing in common: every patch is dense
    batch.versions[0].push_back(random_elements(Kind::f32, kElementsMax, rng_));
  std::size_t folds = 0;
  runtime().fault = [&](const char* call) {
    folds += std::string_view(call) == "fold_patches";
    return cudaSuccess;
  };
  expect_folds_as_cpu(*coder, batch);
  EXPECT_GE(folds, 3U);
  EXPECT_EQ(failures_, 0) << why_;
}

TEST_F(GpuTest, MakesAsManyTripsAsALaneNeeds) {
  const auto coder = make_gpu_coder(options());
  const Batch batch(kJobs, 3, rng_);
  std::size_t copies = 0;
  runtime().fault = [&](const char* call) {
    copies += std::string_view(call) == "cudaMemcpyAsync";
    return cudaSuccess;
  };
  expect_codes_as_cpu(*coder, batch);
  EXPECT_GE(copies, 5u) << "two trips at least";
  expect_decodes(*coder, batch);
  EXPECT_EQ(failures_, 0) << why_;
}

TEST_F(GpuTest, StepsThatDoNotFitIntoALaneGoOnInTheNextTrip) {
  const auto coder = make_gpu_coder(options());
  Batch batch(1, 1, rng_);
  batch.kinds[0] = Kind::f32;
  batch.versions[0].clear();
  for (int v = 0; v < 9; ++v)  // nothing in common: every block is raw
    batch.versions[0].push_back(random_elements(Kind::f32, kElementsMax, rng_));
  expect_decodes(*coder, batch);
  EXPECT_EQ(failures_, 0) << why_;
}
#endif

TEST_F(GpuTest, SeveralThreadsShareTheLanes) {
  for (const unsigned lanes : {1U, 2U}) {
    GpuOptions shared = options();
    shared.lanes = lanes;
    const auto coder = make_gpu_coder(shared);
    std::vector<Batch> batches;
    for (int t = 0; t < 4; ++t) batches.emplace_back(6, 3, rng_);
    {
      std::vector<std::jthread> threads;
      for (const Batch& batch : batches)
        threads.emplace_back([&coder, &batch] {
          expect_codes_as_cpu(*coder, batch);
          expect_decodes(*coder, batch);
        });
    }
    EXPECT_EQ(failures_, 0) << why_;
  }
}

// ---- failures -----------------------------------------------------------------------------------

TEST_F(GpuTest, WithoutRoomForALaneTheCpuWorksAndItIsSaid) {
  for (const char* call : {"cudaSetDevice", "cudaStreamCreate", "cudaMalloc", "cudaMallocHost"}) {
    failures_ = 0;
    fail(call, 0, 1, cudaErrorMemoryAllocation);
    const auto coder = make_gpu_coder(options());
    EXPECT_EQ(failures_, 1) << call;
    EXPECT_NE(why_.find("cuda: device 0: out of memory"), std::string::npos) << why_;
    EXPECT_EQ(coder->name(), make_cpu_coder()->name());
    expect_codes_as_cpu(*coder, Batch(3, 2, rng_));
  }
}

TEST_F(GpuTest, ADeviceThatCannotRunTheKernelsIsRefusedAtOnce) {
  fail("cudaFuncGetAttributes", 0, 1, cudaErrorNoKernelImageForDevice);
  EXPECT_EQ(make_gpu_coder(options())->name(), make_cpu_coder()->name());
  EXPECT_EQ(given_up_, 1);
  EXPECT_NE(why_.find("no kernel image"), std::string::npos) << why_;
  EXPECT_EQ(find_gpus().devices.at(0).why_not, "");

  runtime().properties.major = 7;
  runtime().properties.minor = 5;
  EXPECT_EQ(make_gpu_coder(options())->name(), make_cpu_coder()->name());
  EXPECT_EQ(given_up_, 2);
  const std::string why_not = find_gpus().devices.at(0).why_not;
  EXPECT_EQ(why_not, "its compute capability is 7.5, and the kernels need 8.0");
  EXPECT_NE(why_.find(why_not), std::string::npos) << why_;
}

TEST_F(GpuTest, ASecondLaneIsNoNecessity) {
  fail("cudaMalloc", 1, 1, cudaErrorMemoryAllocation);
  const auto coder = make_gpu_coder(options());
  EXPECT_EQ(coder->name(), "cuda: CUDA on CPU");
  expect_codes_as_cpu(*coder, Batch(3, 2, rng_));
  EXPECT_EQ(failures_, 0) << why_;
}

/// Fails the n-th call of a name for every n until nothing fails any more: there is no place where
/// a failure is not noticed.
TEST_F(GpuTest, WhateverFailsTheResultsAreThoseOfTheCpu) {
  const Batch batch(5, 2, rng_);
  for (const char* call : kFailingCalls) {
    std::size_t nth = 0;
    for (bool has_failed = true; has_failed; ++nth) {
      failures_ = 0;
      const auto coder = make_gpu_coder(options());
      const std::size_t before = runtime().calls_failed;
      fail(call, nth, 1);
      expect_codes_as_cpu(*coder, batch);
      expect_decodes(*coder, batch);
      expect_folds_as_cpu(*coder, batch);
      has_failed = runtime().calls_failed != before;
      runtime().fault = nullptr;
      // The last waits, as a lane is given back, come when the results are there.
      if (std::string_view(call) != "cudaStreamSynchronize") {
        EXPECT_EQ(failures_, has_failed ? 1 : 0) << call << " " << nth;
      }
    }
    EXPECT_GT(nth, 1u) << call << " was never called";
  }
}

#ifndef WEIGHTFS_REAL_KERNELS
/// What was decoded in place before the failure is not decoded again; a chunk whose steps took
/// several trips goes on where it was.
TEST_F(GpuTest, WhateverFailsInPlaceTheCpuGoesOnFromThere) {
  Batch batch(5, 2, rng_);
  batch.kinds.push_back(Kind::f32);
  batch.versions.emplace_back();
  for (int v = 0; v < 5; ++v)  // nothing in common: every block is raw
    batch.versions.back().push_back(random_elements(Kind::f32, kElementsMax, rng_));
  for (auto& versions : batch.versions) versions.resize(5, versions.back());
  for (const char* call : {"cudaMemcpyAsync", "cudaStreamSynchronize", "decode_blocks"}) {
    std::size_t nth = 0;
    for (bool has_failed = true; has_failed; ++nth) {
      const auto coder = make_gpu_coder(options());
      const std::size_t before = runtime().calls_failed;
      fail(call, nth, 1);
      expect_decodes(*coder, batch, Where::in_place);
      has_failed = runtime().calls_failed != before;
      runtime().fault = nullptr;
    }
    EXPECT_GT(nth, 3u) << call << ": there are not several trips";
  }
}
#endif

/// Changes the first or the last byte of what the n-th copy down brings.
void spoil_copy_down(std::size_t nth, bool is_first, std::size_t& copies) {
  copies = 0;
  runtime().after_copy = [=, &copies](cudaMemcpyKind kind, std::span<std::byte> copied) {
    if (kind != cudaMemcpyDeviceToHost || copies++ != nth) return;
    (is_first ? copied.front() : copied.back()) ^= std::byte{1};
  };
}

TEST_F(GpuTest, BytesThatChangeOnTheWayDownAreFound) {
  const Batch batch(5, 2, rng_);
  for (const Where where : {Where::apart, Where::in_place}) {
    for (const bool is_first : {true, false}) {
      std::size_t nth = 0;
      for (std::size_t copies = 1; nth < copies; ++nth) {
        failures_ = 0;
        const auto coder = make_gpu_coder(options());
        spoil_copy_down(nth, is_first, copies);
        expect_codes_as_cpu(*coder, batch);
        expect_decodes(*coder, batch, where);
        runtime().after_copy = nullptr;
        EXPECT_EQ(failures_, 1) << nth << (is_first ? ", first" : ", last");
      }
      EXPECT_EQ(nth, 3u) << "results, coded bytes, decoded bytes";
    }
  }
}

TEST_F(GpuTest, WhatTheDeviceMisreadIsNotPublished) {
  Batch batch(1, 1, rng_);
  batch.kinds[0] = Kind::bf16;
  const Bytes old_chunk = random_elements(Kind::bf16, 1000, rng_);
  batch.versions[0] = {old_chunk, changed_elements(Kind::bf16, old_chunk, 0.02, Step::few, rng_)};
  for (const Bytes& misread : batch.versions[0]) {
    failures_ = 0;
    const auto coder = make_gpu_coder(options());
    runtime().after_copy = [&](cudaMemcpyKind kind, std::span<std::byte> copied) {
      if (kind != cudaMemcpyHostToDevice) return;
      const auto found = std::search(copied.begin(), copied.end(), misread.begin(), misread.end());
      if (found != copied.end()) *found ^= std::byte{1};
    };
    expect_codes_as_cpu(*coder, batch);
    EXPECT_EQ(failures_, 1);
    EXPECT_NE(why_.find("copying to the device"), std::string::npos) << why_;
  }
}

TEST_F(GpuTest, AfterAFailureThatPassesTheDeviceIsTriedAgain) {
  const auto coder = make_gpu_coder(options());
  fail("cudaMemcpyAsync", 0, 1);
  const Batch batch(3, 2, rng_);
  expect_codes_as_cpu(*coder, batch);
  EXPECT_EQ(failures_, 1);
  EXPECT_EQ(coder->name(), "cuda: CUDA on CPU");
  std::size_t copies = 0;
  runtime().fault = [&](const char* call) {
    copies += std::string_view(call) == "cudaMemcpyAsync";
    return cudaSuccess;
  };
  expect_codes_as_cpu(*coder, batch);
  EXPECT_GT(copies, 0u);
  EXPECT_EQ(failures_, 1);
}

TEST_F(GpuTest, APassingFailureIsNotTheEnd) {
  const auto coder = make_gpu_coder(options());
  const Batch batch(2, 2, rng_);
  fail("cudaMemcpyAsync", 0, 1);
  expect_codes_as_cpu(*coder, batch);
  EXPECT_EQ(failures_, 1);
  EXPECT_EQ(given_up_, 0);
  EXPECT_NE(why_.find("the device is tried again"), std::string::npos) << why_;
  runtime().fault = [](const char*) { return cudaErrorLaunchFailure; };
  expect_codes_as_cpu(*coder, batch);
  EXPECT_EQ(failures_, 2) << "that it is given up is said too";
  EXPECT_EQ(given_up_, 1);
}

TEST_F(GpuTest, ThreeFailuresInARowAreEnough) {
  const auto coder = make_gpu_coder(options());
  const Batch batch(2, 2, rng_);
  const auto call = [&](bool fails) {
    fail("pack_blocks", 0, fails ? 1 : 0);
    expect_codes_as_cpu(*coder, batch);
  };
  for (const bool fails : {true, true, false, true, true}) call(fails);
  EXPECT_EQ(given_up_, 0);
  EXPECT_EQ(coder->name(), "cuda: CUDA on CPU");
  call(true);
  EXPECT_EQ(given_up_, 1);
  EXPECT_EQ(coder->name(), make_cpu_coder()->name());
  EXPECT_NE(why_.find("the CPU does the work"), std::string::npos) << why_;
}

/// Decodes a block that is replaced, and notes that.
DecodeJob decode_noted(ChunkCoder& coder, Bytes& chunk, ChangeLog& log) {
  Bytes raw = {static_cast<std::byte>(Mode::raw)};
  raw.resize(1 + chunk.size(), std::byte{7});
  const std::vector<std::uint32_t> lengths = {static_cast<std::uint32_t>(raw.size())};
  const CodedChunk step{lengths, raw};
  DecodeJob job{.kind = Kind::bf16,
                .old_chunk = chunk,
                .steps = {&step, 1},
                .new_chunk = chunk,
                .log = coder.writes_logs() ? &log : nullptr};
  coder.decode({&job, 1});
  EXPECT_TRUE(job.is_decoded);
  return job;
}

// What the CPU did is not blamed on the device.
TEST_F(GpuTest, ADecodeThatTheDeviceFailsIsNotItsOwn) {
  const auto coder = make_gpu_coder(options());
  Bytes chunk(1024, std::byte{1});
  ChangeLog log;
  fail("cudaMemcpyAsync", 0, 1);
  EXPECT_FALSE(decode_noted(*coder, chunk, log).by_gpu);
  EXPECT_TRUE(decode_noted(*coder, chunk, log).by_gpu);
}

TEST_F(GpuTest, WhatAlwaysFailsIsGivenUpThoughOtherWorkSucceeds) {
  const auto coder = make_gpu_coder(options());
  const Batch batch(2, 2, rng_);
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(given_up_, 0);
    fail("pack_blocks", 0, 1);
    expect_codes_as_cpu(*coder, batch);
    Bytes chunk(1024, std::byte{1});
    ChangeLog log;
    EXPECT_TRUE(decode_noted(*coder, chunk, log).is_decoded);
  }
  EXPECT_EQ(given_up_, 1);
}

TEST_F(GpuTest, AfterTheDeviceIsLostChangesAreNotedAgain) {
  const auto coder = make_gpu_coder(options());
  EXPECT_FALSE(coder->writes_logs());
  runtime().fault = [](const char*) { return cudaErrorLaunchFailure; };
  expect_codes_as_cpu(*coder, Batch(1, 2, rng_));
  EXPECT_TRUE(coder->writes_logs());
  Bytes chunk = random_elements(Kind::bf16, 100, rng_);
  const std::uint64_t old_hash = hash_chunk(chunk);
  ChangeLog log;
  EXPECT_EQ(decode_noted(*coder, chunk, log).old_hash, old_hash);
  EXPECT_EQ(log.lengths.size(), 1u);
}

TEST_F(GpuTest, ADeviceThatIsDistrustedIsGivenUp) {
  const auto coder = make_gpu_coder(options());
  Bytes chunk = random_elements(Kind::bf16, 100, rng_);
  ChangeLog log;
  EXPECT_TRUE(decode_noted(*coder, chunk, log).by_gpu);
  coder->distrust("chunk 3");
  coder->distrust("chunk 4");
  EXPECT_FALSE(decode_noted(*coder, chunk, log).by_gpu);
  EXPECT_EQ(coder->name(), make_cpu_coder()->name());
  EXPECT_EQ(failures_, 1);
  EXPECT_EQ(given_up_, 1);
  EXPECT_NE(why_.find("chunk 3 came out wrong"), std::string::npos) << why_;
}

TEST_F(GpuTest, ADeviceThatIsGoneIsGivenUpAndItIsSaidOnce) {
  const auto coder = make_gpu_coder(options());
  const std::string name = coder->name();
  runtime().fault = [](const char*) { return cudaErrorLaunchFailure; };
  const Batch batch(3, 3, rng_);
  expect_codes_as_cpu(*coder, batch);
  const std::size_t failed = runtime().calls_failed;
  expect_decodes(*coder, batch);
  expect_codes_as_cpu(*coder, batch);
  EXPECT_EQ(runtime().calls_failed, failed) << "it was asked again";
  EXPECT_EQ(failures_, 1);
  EXPECT_NE(why_.find("unspecified launch failure"), std::string::npos) << why_;
  EXPECT_NE(why_.find("the CPU does the work"), std::string::npos) << why_;
  EXPECT_EQ(coder->name(), make_cpu_coder()->name());
}

TEST_F(GpuTest, ADeviceThatGoesWhileSeveralThreadsUseItIsGivenUpOnce) {
  const auto coder = make_gpu_coder(options());
  std::atomic<int> calls = 0;
  runtime().fault = [&](const char*) {
    return ++calls > 40 ? cudaErrorLaunchFailure : cudaSuccess;
  };
  std::vector<Batch> batches;
  for (int t = 0; t < 4; ++t) batches.emplace_back(3, 2, rng_);
  {
    std::vector<std::jthread> threads;
    for (const Batch& batch : batches)
      threads.emplace_back([&] {
        for (int round = 0; round < 3; ++round) expect_codes_as_cpu(*coder, batch);
      });
  }
  EXPECT_EQ(failures_, 1);
}

}  // namespace
}  // namespace weightfs::kernels
