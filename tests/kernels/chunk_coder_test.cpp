// The contract of ChunkCoder, held by every way to make one.
#include "kernels/block/chunk_coder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/decode.hpp"
#include "kernels/dispatch/encode.hpp"
#include "kernels/dispatch/gpu.hpp"
#include "kernels/dispatch/hash.hpp"
#include "kernels/dispatch/patch.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "tests/kernels/blocks.hpp"
#include "tests/support/support.hpp"

namespace weightfs::kernels {
namespace {

using test::changed_elements;
using test::count_changed;
using test::kKinds;
using test::random_elements;
using test::scratch;
using test::Step;

/// A way to make a coder.
struct ReconstructionPath {
  std::string name;
  std::function<std::unique_ptr<ChunkCoder>()> make;
};

bool has_device() {
  return std::ranges::any_of(find_gpus().devices,
                             [](const GpuDevice& device) { return device.why_not.empty(); });
}

/// The device, which must not leave its work to the CPU; the emulated one (weightfs_gpu_test); or
/// the CPU where there is neither.
std::unique_ptr<ChunkCoder> make_coder_of_device() {
  GpuOptions options{.lane_bytes = 1};
  if (has_device()) {
    options.on_failure = [](std::string_view why, bool /*is_given_up*/) { ADD_FAILURE() << why; };
  }
  return make_gpu_coder(options);
}

std::vector<ReconstructionPath> all_ways() {
  std::vector<ReconstructionPath> ways = {{"chosen", [] { return make_cpu_coder(); }}};
  for (const Variant& variant : variants()) {
    ways.push_back({std::string(variant.name), [&variant] { return make_cpu_coder(variant); }});
  }
  ways.push_back({"gpu", make_coder_of_device});
  return ways;
}

/// A chunk coded by the functions of the chosen variant.
struct Coded {
  std::vector<std::uint32_t> lengths;
  Bytes bytes;
  std::size_t changed = 0;

  [[nodiscard]] CodedChunk view() const { return {lengths, bytes}; }
};

Coded code(Kind kind, const Bytes& old_chunk, const Bytes& new_chunk) {
  Coded coded;
  coded.changed = encode_chunk(kind, old_chunk, new_chunk, scratch(), coded.lengths, coded.bytes);
  return coded;
}

EncodeJob encoding_of(Kind kind, const Bytes& old_chunk, const Bytes& new_chunk) {
  EncodeJob job;
  job.kind = kind;
  job.old_chunk = old_chunk;
  job.new_chunk = new_chunk;
  return job;
}

/// Sizes in elements: nothing, one, a block and its neighbours, several blocks, a whole chunk.
const std::vector<std::size_t> kSizes = {0,
                                         1,
                                         kBlockElements - 1,
                                         kBlockElements,
                                         kBlockElements + 1,
                                         3 * kBlockElements + 77,
                                         kChunkBlocks* kBlockElements};

/// The same chunk at several versions.
std::vector<Bytes> random_versions(Kind kind, std::size_t elements, std::size_t count,
                                   test::Random& rng) {
  std::vector<Bytes> versions = {random_elements(kind, elements, rng)};
  while (versions.size() < count) {
    versions.push_back(changed_elements(kind, versions.back(), 0.02, Step::few, rng));
  }
  return versions;
}

class ChunkCoderTest : public testing::TestWithParam<ReconstructionPath> {
 protected:
  const std::unique_ptr<ChunkCoder> coder_ = GetParam().make();
  test::Random rng_ = test::make_rng();
};

TEST_P(ChunkCoderTest, TakesEmptyBatches) {
  coder_->encode({});
  coder_->decode({});
  coder_->fold({});
}

TEST_P(ChunkCoderTest, EncodesWhatTheFunctionsEncode) {
  std::vector<Bytes> old_chunks, new_chunks;
  std::vector<EncodeJob> jobs;
  for (const Kind kind : kKinds) {
    for (const std::size_t elements : kSizes) {
      old_chunks.push_back(random_elements(kind, elements, rng_));
      new_chunks.push_back(changed_elements(kind, old_chunks.back(), 0.013, Step::few, rng_));
      jobs.push_back(encoding_of(kind, old_chunks.back(), new_chunks.back()));
    }
  }
  coder_->encode(jobs);
  for (std::size_t i = 0; i < jobs.size(); i++) {
    const EncodeJob& job = jobs[i];
    const Coded expected = code(job.kind, old_chunks[i], new_chunks[i]);
    EXPECT_EQ(job.lengths, expected.lengths);
    EXPECT_TRUE(job.coded == expected.bytes);
    EXPECT_EQ(job.changed, count_changed(job.kind, old_chunks[i], new_chunks[i]));
    EXPECT_EQ(job.old_hash, hash_chunk(old_chunks[i]));
    EXPECT_EQ(job.new_hash, hash_chunk(new_chunks[i]));
    EXPECT_TRUE(job.is_verified);
  }
}

TEST_P(ChunkCoderTest, CodesAnEqualChunkAsLengthsOfZero) {
  const Bytes chunk = random_elements(Kind::bf16, 2 * kBlockElements + 1, rng_);
  EncodeJob job = encoding_of(Kind::bf16, chunk, chunk);
  coder_->encode({&job, 1});
  EXPECT_EQ(job.lengths, std::vector<std::uint32_t>(3, 0));
  EXPECT_TRUE(job.coded.empty());
  EXPECT_EQ(job.changed, 0u);
  EXPECT_EQ(job.old_hash, hash_chunk(chunk));
  EXPECT_EQ(job.new_hash, job.old_hash);
  EXPECT_TRUE(job.is_verified);
}

TEST_P(ChunkCoderTest, ReplacesTheResultsOfTheJobBefore) {
  const Bytes old_chunk = random_elements(Kind::bf16, 1000, rng_);
  const Bytes new_chunk = changed_elements(Kind::bf16, old_chunk, 0.1, Step::any, rng_);
  EncodeJob job = encoding_of(Kind::bf16, old_chunk, new_chunk);
  coder_->encode({&job, 1});
  const EncodeJob first = job;
  coder_->encode({&job, 1});
  EXPECT_EQ(job.lengths, first.lengths);
  EXPECT_EQ(job.coded, first.coded);
  EXPECT_EQ(job.changed, first.changed);
}

TEST_P(ChunkCoderTest, DecodesNoStepOneStepAndManySteps) {
  for (const Kind kind : kKinds) {
    for (const std::size_t elements : kSizes) {
      const auto versions = random_versions(kind, elements, 6, rng_);
      std::vector<Coded> coded;
      std::vector<CodedChunk> steps;
      for (std::size_t i = 1; i < versions.size(); i++) {
        coded.push_back(code(kind, versions[i - 1], versions[i]));
      }
      for (const Coded& step : coded) steps.push_back(step.view());

      std::vector<Bytes> made(versions.size(), Bytes(versions[0].size()));
      std::vector<DecodeJob> jobs(versions.size());
      for (std::size_t i = 0; i < jobs.size(); i++) {
        jobs[i].kind = kind;
        jobs[i].old_chunk = versions[0];
        jobs[i].steps = std::span(steps).first(i);
        jobs[i].new_chunk = made[i];
      }
      coder_->decode(jobs);
      for (std::size_t i = 0; i < jobs.size(); i++) {
        EXPECT_TRUE(jobs[i].is_decoded);
        EXPECT_TRUE(made[i] == versions[i]) << elements << " elements, " << i << " steps";
        EXPECT_EQ(jobs[i].hash, hash_chunk(versions[i]));
      }
    }
  }
}

/// Changes by which the encoder chooses each mode that packs have.
const std::vector<std::pair<double, Step>> kChangesOfAllModes = {
    {0.0, Step::few}, {0.0002, Step::any}, {0.013, Step::few}, {0.5, Step::few}, {1.0, Step::any}};

TEST_P(ChunkCoderTest, DecodesInPlaceWhatItDecodesElsewhere) {
  std::set<Mode> modes;
  for (const Kind kind : kKinds) {
    for (const auto& [share, step] : kChangesOfAllModes) {
      // The chosen mode of u8 is EF or raw; blocks of nothing in common are raw in all kinds.
      std::vector<Bytes> versions = {random_elements(kind, 2 * kBlockElements + 77, rng_)};
      for (int i = 0; i < 3; i++) {
        versions.push_back(changed_elements(kind, versions.back(), share, step, rng_));
      }
      std::vector<Coded> coded;
      std::vector<CodedChunk> steps;
      for (std::size_t i = 1; i < versions.size(); i++) {
        coded.push_back(code(kind, versions[i - 1], versions[i]));
      }
      for (const Coded& one : coded) {
        steps.push_back(one.view());
        std::size_t at = 0;
        for (const std::uint32_t length : one.lengths) {
          modes.insert(length == 0 ? Mode::same : static_cast<Mode>(one.bytes[at]));
          at += length;
        }
      }
      std::vector<Bytes> chunks(versions.size(), versions[0]);
      std::vector<DecodeJob> jobs(versions.size());
      for (std::size_t i = 0; i < jobs.size(); i++) {
        jobs[i] = {.kind = kind,
                   .old_chunk = chunks[i],
                   .steps = std::span(steps).first(i),
                   .new_chunk = chunks[i]};
      }
      coder_->decode(jobs);
      for (std::size_t i = 0; i < jobs.size(); i++) {
        EXPECT_TRUE(jobs[i].is_decoded);
        EXPECT_TRUE(chunks[i] == versions[i]) << share << " changed, " << i << " steps";
        EXPECT_EQ(jobs[i].hash, hash_chunk(versions[i]));
        EXPECT_EQ(jobs[i].old_chunk.data(), chunks[i].data());
        EXPECT_EQ(jobs[i].steps.size(), i);
      }
    }
  }
  for (const Mode mode : {Mode::same, Mode::raw, Mode::ef, Mode::xs}) {  // XR: vectors_test.cpp
    EXPECT_TRUE(modes.contains(mode)) << static_cast<int>(mode);
  }
}

/// The patch of a chunk, made by the functions of the chosen variant.
Coded patch(Kind kind, const Bytes& old_chunk, const Bytes& new_chunk) {
  Coded made;
  const ByteSpan before(old_chunk), after(new_chunk);
  for (std::size_t at = 0; at < after.size(); at += block_bytes(kind)) {
    const std::size_t size = std::min(block_bytes(kind), after.size() - at);
    const std::size_t begin = made.bytes.size();
    made.changed +=
        make_patch(kind, before.subspan(at, size), after.subspan(at, size), scratch(), made.bytes);
    made.lengths.push_back(static_cast<std::uint32_t>(made.bytes.size() - begin));
  }
  return made;
}

std::vector<CodedChunk> views_of(const std::vector<Coded>& chunks) {
  std::vector<CodedChunk> views;
  for (const Coded& one : chunks) views.push_back(one.view());
  return views;
}

TEST_P(ChunkCoderTest, AddsPatchesUpToThatOfTheWholeWay) {
  for (const Kind kind : kKinds) {
    for (const std::size_t elements : kSizes) {
      auto versions = random_versions(kind, elements, 5, rng_);
      versions.push_back(random_elements(kind, elements, rng_));  // nothing in common
      versions.push_back(versions[1]);                            // a change that came back
      std::vector<Coded> patches;
      for (std::size_t i = 1; i < versions.size(); i++) {
        patches.push_back(patch(kind, versions[i - 1], versions[i]));
      }
      const std::vector<CodedChunk> views = views_of(patches);
      std::vector<FoldJob> jobs(views.size() + 1);
      for (std::size_t i = 0; i < jobs.size(); i++) {
        jobs[i].kind = kind;
        jobs[i].chunk_bytes = versions[0].size();
        jobs[i].patches = std::span(views).first(i);
        jobs[i].lengths.resize(patches[0].lengths.size() + 1, 7);  // of the job before
        jobs[i].folded.resize(3);
      }
      coder_->fold(jobs);
      for (std::size_t i = 0; i < jobs.size(); i++) {
        const Coded expected = patch(kind, versions[0], versions[i]);
        EXPECT_TRUE(jobs[i].is_folded);
        EXPECT_EQ(jobs[i].lengths, expected.lengths) << elements << " elements, " << i;
        EXPECT_TRUE(jobs[i].folded == expected.bytes) << elements << " elements, " << i;
      }
    }
  }
}

TEST_P(ChunkCoderTest, RefusesAMalformedPatchAndAddsUpTheOtherJobs) {
  const auto versions = random_versions(Kind::bf16, 2 * kBlockElements + 5, 3, rng_);
  const Coded first = patch(Kind::bf16, versions[0], versions[1]);
  const Coded second = patch(Kind::bf16, versions[1], versions[2]);
  Coded no_mode = second, cut = second, missing = second;
  no_mode.bytes[0] = std::byte{0x7F};
  cut.bytes.pop_back();
  missing.lengths.pop_back();
  std::vector<std::vector<CodedChunk>> patches = {{first.view(), second.view()}};
  for (const Coded* bad : {&no_mode, &cut, &missing}) {
    patches.push_back({first.view(), bad->view()});
  }
  patches.push_back({second.view(), first.view()});
  std::vector<FoldJob> jobs(patches.size());
  for (std::size_t i = 0; i < jobs.size(); i++) {
    jobs[i].kind = Kind::bf16;
    jobs[i].chunk_bytes = versions[0].size();
    jobs[i].patches = patches[i];
  }
  coder_->fold(jobs);
  const Coded expected = patch(Kind::bf16, versions[0], versions[2]);
  for (std::size_t i = 0; i < jobs.size(); i++) {
    const bool is_good = i == 0 || i + 1 == jobs.size();
    EXPECT_EQ(jobs[i].is_folded, is_good) << i;
    EXPECT_TRUE(!is_good || jobs[i].folded == expected.bytes) << i;
  }
}

TEST_P(ChunkCoderTest, SaysFromWhereOnABatchIsWorthwhile) {
  EXPECT_GT(coder_->decode_batch_bytes(), 0u);
}

TEST_P(ChunkCoderTest, SkipsBlocksThatAStepLeavesAsTheyAre) {
  constexpr std::size_t kElements = 3 * kBlockElements;
  const Bytes first = random_elements(Kind::f16, kElements, rng_);
  Bytes second = first, third = first;
  second[0] ^= std::byte{1};  // block 0 in the first step, block 2 in the last one
  third = second;
  third.back() ^= std::byte{1};
  const Coded a = code(Kind::f16, first, second), b = code(Kind::f16, second, second),
              c = code(Kind::f16, second, third);
  const std::vector<CodedChunk> steps = {a.view(), b.view(), c.view()};
  Bytes made(first.size());
  DecodeJob job{.kind = Kind::f16, .old_chunk = first, .steps = steps, .new_chunk = made};
  coder_->decode({&job, 1});
  EXPECT_TRUE(job.is_decoded);
  EXPECT_TRUE(made == third);
  EXPECT_EQ(job.hash, hash_chunk(third));
}

TEST_P(ChunkCoderTest, RefusesAMalformedStepAndDecodesTheOtherJobs) {
  const auto versions = random_versions(Kind::bf16, kBlockElements + 5, 3, rng_);
  const Coded good = code(Kind::bf16, versions[0], versions[1]);
  Coded bad = code(Kind::bf16, versions[1], versions[2]);
  bad.bytes[0] = std::byte{0x7F};  // no mode
  const std::vector<CodedChunk> good_first = {good.view(), bad.view()};
  const std::vector<CodedChunk> bad_only = {bad.view()};
  const std::vector<CodedChunk> good_only = {good.view()};
  std::vector<Bytes> made(3, Bytes(versions[0].size()));
  std::vector<DecodeJob> jobs(3);
  jobs[0] = {.kind = Kind::bf16,
             .old_chunk = versions[0],
             .steps = good_first,
             .new_chunk = made[0],
             .is_decoded = true};
  jobs[1] = {.kind = Kind::bf16,
             .old_chunk = versions[1],
             .steps = bad_only,
             .new_chunk = made[1],
             .is_decoded = true};
  jobs[2] = {
      .kind = Kind::bf16, .old_chunk = versions[0], .steps = good_only, .new_chunk = made[2]};
  coder_->decode(jobs);
  EXPECT_FALSE(jobs[0].is_decoded);
  EXPECT_FALSE(jobs[1].is_decoded);
  EXPECT_TRUE(jobs[2].is_decoded);
  EXPECT_TRUE(made[2] == versions[1]);
}

TEST_P(ChunkCoderTest, RefusesLengthsThatDoNotFit) {
  const auto versions = random_versions(Kind::f32, 2 * kBlockElements, 2, rng_);
  const Coded coded = code(Kind::f32, versions[0], versions[1]);
  ASSERT_EQ(coded.lengths.size(), 2u);
  const auto is_decoded = [&](const std::vector<std::uint32_t>& lengths, ByteSpan bytes) {
    const std::vector<CodedChunk> steps = {{lengths, bytes}};
    Bytes made(versions[0].size());
    DecodeJob job{.kind = Kind::f32, .old_chunk = versions[0], .steps = steps, .new_chunk = made};
    coder_->decode({&job, 1});
    return job.is_decoded;
  };
  const std::uint32_t a = coded.lengths[0], b = coded.lengths[1];
  EXPECT_TRUE(is_decoded({a, b}, coded.bytes));
  EXPECT_FALSE(is_decoded({a}, coded.bytes)) << "a block has no length";
  EXPECT_FALSE(is_decoded({a}, ByteSpan(coded.bytes).first(a))) << "a block has no length";
  EXPECT_FALSE(is_decoded({a, b, 0}, coded.bytes)) << "a length has no block";
  EXPECT_FALSE(is_decoded({a, b - 1}, coded.bytes)) << "bytes are left over";
  EXPECT_FALSE(is_decoded({a, b + 1}, coded.bytes)) << "bytes are missing";
  EXPECT_FALSE(is_decoded({a, 0xFFFFFFFF}, coded.bytes)) << "bytes are missing";
  EXPECT_FALSE(is_decoded({}, {})) << "no block has a length";
}

TEST_P(ChunkCoderTest, EmptyChunksHaveNoBlock) {
  DecodeJob decoding;
  coder_->decode({&decoding, 1});
  EXPECT_TRUE(decoding.is_decoded);
  EXPECT_EQ(decoding.hash, hash_chunk({}));
  EncodeJob coding;
  coder_->encode({&coding, 1});
  EXPECT_TRUE(coding.is_verified);
  EXPECT_TRUE(coding.lengths.empty());
  EXPECT_EQ(coding.new_hash, hash_chunk({}));
}

TEST_P(ChunkCoderTest, WorksForSeveralThreadsAtATime) {
  constexpr std::size_t kThreads = 4, kRounds = 5;
  std::vector<std::vector<Bytes>> versions;
  for (std::size_t t = 0; t < kThreads; t++) {
    versions.push_back(
        random_versions(kKinds[t + 1], 2 * kBlockElements + 10 * t, kRounds + 1, rng_));
  }
  std::vector<unsigned> right(kThreads, 0);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; t++) {
      threads.emplace_back([&, t] {
        for (std::size_t i = 1; i <= kRounds; i++) {
          EncodeJob coding = encoding_of(kKinds[t + 1], versions[t][i - 1], versions[t][i]);
          coder_->encode({&coding, 1});
          const CodedChunk step{coding.lengths, coding.coded};
          Bytes made(versions[t][i].size());
          DecodeJob decoding{.kind = kKinds[t + 1],
                             .old_chunk = versions[t][i - 1],
                             .steps = {&step, 1},
                             .new_chunk = made};
          coder_->decode({&decoding, 1});
          right[t] += coding.is_verified && decoding.is_decoded && made == versions[t][i] &&
                      decoding.hash == coding.new_hash;
        }
      });
    }
  }
  for (const unsigned count : right) EXPECT_EQ(count, kRounds);
}

TEST_P(ChunkCoderTest, NotesWhatItDecodes) {
  if (!coder_->writes_logs()) GTEST_SKIP() << "the coder writes no logs";
  for (const Kind kind : kKinds) {
    const std::size_t elements = 3 * kBlockElements + 77;
    const Bytes before = random_elements(kind, elements, rng_);
    const Bytes after = changed_elements(kind, before, 0.01, Step::unit, rng_);
    const Bytes last = changed_elements(kind, after, 0.01, Step::few, rng_);
    const std::vector<Coded> coded = {code(kind, before, after), code(kind, after, last)};
    const std::vector<CodedChunk> steps = {coded[0].view(), coded[1].view()};
    Bytes chunk = before;
    ChangeLog log;
    log.lengths = {1, 2, 3};
    log.bytes.resize(7);
    DecodeJob job{
        .kind = kind, .old_chunk = chunk, .steps = steps, .new_chunk = chunk, .log = &log};
    coder_->decode({&job, 1});
    ASSERT_TRUE(job.is_decoded);
    ASSERT_TRUE(chunk == last);
    EXPECT_FALSE(job.old_hash) << "no block is replaced";
    ASSERT_EQ(log.lengths.size(), 4u);
    std::size_t at = 0;
    for (std::size_t i = 0; i < log.lengths.size(); i++) {
      const std::size_t begin = i * block_bytes(kind);
      const std::size_t size = std::min(block_bytes(kind), before.size() - begin);
      Bytes patch, expected;
      ASSERT_TRUE(patch_of_log(kind, size / width_bytes(kind),
                               ByteSpan(log.bytes).subspan(at, log.lengths[i]), scratch(), patch));
      make_patch(kind, ByteSpan(before).subspan(begin, size), ByteSpan(last).subspan(begin, size),
                 scratch(), expected);
      EXPECT_TRUE(patch == expected) << "block " << i;
      const auto found = std::make_unique<Changes>();
      find_changes(kind, ByteSpan(before).subspan(begin, size), ByteSpan(last).subspan(begin, size),
                   *found);
      const Changes* const noted =
          changes_of_log(kind, size / width_bytes(kind),
                         ByteSpan(log.bytes).subspan(at, log.lengths[i]), scratch());
      ASSERT_NE(noted, nullptr);
      ASSERT_EQ(noted->count, found->count);
      EXPECT_TRUE(std::equal(noted->position.begin(), noted->position.begin() + found->count,
                             found->position.begin()));
      EXPECT_TRUE(std::equal(noted->difference.begin(), noted->difference.begin() + found->count,
                             found->difference.begin()));
      at += log.lengths[i];
    }
    EXPECT_EQ(at, log.bytes.size());
  }
}

/// What coding notes is what decoding would: the coder decodes what it coded.
TEST_P(ChunkCoderTest, NotesWhatItCodes) {
  if (!coder_->writes_logs()) return;  // a GPU: nobody asks it to
  for (const Kind kind : kKinds) {
    for (const Step step : {Step::unit, Step::few}) {
      for (const double share : {0.0, 0.01, 0.9}) {
        const Bytes before = random_elements(kind, 3 * kBlockElements + 77, rng_);
        Bytes after = changed_elements(kind, before, share, step, rng_);
        const std::size_t block = block_bytes(kind);
        std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(block), block,
                    after.begin() + static_cast<std::ptrdiff_t>(block));  // one did not change
        ChangeLog coded, decoded;
        coded.lengths = {1, 2, 3};
        coded.bytes.resize(7);
        EncodeJob coding = encoding_of(kind, before, after);
        coding.log = &coded;
        coder_->encode({&coding, 1});
        ASSERT_TRUE(coding.is_verified);
        Bytes chunk = before;
        const CodedChunk one{coding.lengths, coding.coded};
        DecodeJob decoding{.kind = kind,
                           .old_chunk = chunk,
                           .steps = {&one, 1},
                           .new_chunk = chunk,
                           .log = &decoded};
        coder_->decode({&decoding, 1});
        ASSERT_TRUE(decoding.is_decoded && chunk == after);
        EXPECT_EQ(coded.lengths, decoded.lengths);
        EXPECT_TRUE(coded.bytes == decoded.bytes);
        EXPECT_EQ(coded.lengths[1], 0u);
      }
    }
  }
}

/// A block that is replaced comes out right whatever was there before, and its log would be wrong.
TEST_P(ChunkCoderTest, TellsWhatItDecodedFromWhereThatIsNotProven) {
  if (!coder_->writes_logs()) GTEST_SKIP() << "the coder writes no logs";
  const Bytes before = random_elements(Kind::bf16, 100, rng_);
  const Bytes after = random_elements(Kind::bf16, 100, rng_);
  Bytes raw = {static_cast<std::byte>(Mode::raw)};
  raw.insert(raw.end(), after.begin(), after.end());
  const std::vector<std::uint32_t> lengths = {static_cast<std::uint32_t>(raw.size())};
  const CodedChunk step{lengths, raw};
  Bytes damaged = before;
  damaged[7] ^= std::byte{1};
  for (const Bytes& old : {before, damaged}) {
    Bytes chunk = old;
    ChangeLog log;
    DecodeJob job{.kind = Kind::bf16,
                  .old_chunk = chunk,
                  .steps = {&step, 1},
                  .new_chunk = chunk,
                  .log = &log};
    coder_->decode({&job, 1});
    ASSERT_TRUE(job.is_decoded);
    EXPECT_TRUE(chunk == after);
    EXPECT_EQ(job.old_hash, hash_chunk(old));
  }
}

TEST_P(ChunkCoderTest, TheDeviceDoesTheWorkWhereThereIsOne) {
  if (GetParam().name != "gpu") return;
  if (!has_device()) GTEST_SKIP() << "this machine has no GPU";
  const auto versions = random_versions(Kind::bf16, 1000, 2, rng_);
  EncodeJob job = encoding_of(Kind::bf16, versions[0], versions[1]);
  coder_->encode({&job, 1});
  EXPECT_TRUE(coder_->name().starts_with("cuda: ")) << coder_->name();
}

TEST_P(ChunkCoderTest, HasAName) { EXPECT_FALSE(coder_->name().empty()); }

INSTANTIATE_TEST_SUITE_P(Ways, ChunkCoderTest, testing::ValuesIn(all_ways()),
                         [](const auto& way) { return way.param.name; });

// ---- variants that are wrong ----

std::size_t encode_nothing(Kind, ByteSpan, ByteSpan, Scratch&, std::vector<std::byte>&) {
  return 0;
}

bool decode_nothing(Kind, ByteSpan, ByteSpan, std::span<std::byte>, Scratch&) noexcept {
  return false;
}

bool decode_old(Kind, ByteSpan old_block, ByteSpan, std::span<std::byte> new_block,
                Scratch&) noexcept {
  std::copy(old_block.begin(), old_block.end(), new_block.begin());
  return true;
}

bool is_verified_by(const Variant& variant) {
  auto rng = test::make_rng();
  const Bytes old_chunk = random_elements(Kind::bf16, 2 * kBlockElements, rng);
  Bytes new_chunk = old_chunk;
  new_chunk.front() ^= std::byte{1};  // only the first block
  EncodeJob job = encoding_of(Kind::bf16, old_chunk, new_chunk);
  make_cpu_coder(variant)->encode({&job, 1});
  EXPECT_EQ(job.new_hash, hash_chunk(new_chunk));
  return job.is_verified;
}

std::vector<bool> was_in_place;

bool decode_and_note(Kind kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
                     Scratch& scratch) noexcept {
  was_in_place.push_back(old_block.data() == new_block.data());
  return variants().front().decode_block(kind, old_block, coded, new_block, scratch);
}

TEST(CpuCoder, CopiesABlockAtMostOnce) {
  auto rng = test::make_rng();
  const auto versions = random_versions(Kind::bf16, 10'000, 4, rng);
  const Coded a = code(Kind::bf16, versions[0], versions[1]),
              none = code(Kind::bf16, versions[1], versions[1]),
              b = code(Kind::bf16, versions[1], versions[2]),
              c = code(Kind::bf16, versions[2], versions[3]);
  const std::vector<CodedChunk> steps = {a.view(), none.view(), b.view(), c.view()};
  Variant watched = variants().front();
  watched.decode_block = decode_and_note;
  const auto coder = make_cpu_coder(watched);

  Bytes made(versions[0].size()), in_place = versions[0];
  was_in_place.clear();
  DecodeJob job{.kind = Kind::bf16, .old_chunk = versions[0], .steps = steps, .new_chunk = made};
  coder->decode({&job, 1});
  EXPECT_TRUE(job.is_decoded);
  EXPECT_TRUE(made == versions[3]);
  EXPECT_EQ(was_in_place, (std::vector{false, true, true}));

  was_in_place.clear();
  job = {.kind = Kind::bf16, .old_chunk = in_place, .steps = steps, .new_chunk = in_place};
  coder->decode({&job, 1});
  EXPECT_TRUE(job.is_decoded);
  EXPECT_TRUE(in_place == versions[3]);
  EXPECT_EQ(was_in_place, (std::vector{true, true, true}));
}

TEST(CpuCoder, SaysThatAWrongEncoderOrDecoderIsWrong) {
  const Variant& scalar = variants().front();
  EXPECT_TRUE(is_verified_by(scalar));
  Variant wrong = scalar;
  wrong.encode_block = encode_nothing;
  EXPECT_FALSE(is_verified_by(wrong)) << "a change was not seen";
  wrong = scalar;
  wrong.decode_block = decode_nothing;
  EXPECT_FALSE(is_verified_by(wrong)) << "the code is refused";
  wrong.decode_block = decode_old;
  EXPECT_FALSE(is_verified_by(wrong)) << "the change is lost";
}

}  // namespace
}  // namespace weightfs::kernels
