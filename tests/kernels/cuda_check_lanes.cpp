// Checks of a device's coder (kernels/dispatch/gpu.hpp), of which the kernels are a part: what
// comes of batches of chunks on their way through a lane is what the CPU's coder makes of them.
//
// Lanes are as small as they can be, so that larger batches take several trips.  What the CPU does
// because the device failed counts as wrong.
#include <algorithm>
#include <memory>

#include "kernels/dispatch/cpu_coder.hpp"
#include "kernels/dispatch/gpu.hpp"
#include "kernels/scalar/scalar.hpp"
#include "tests/kernels/cuda_check.hpp"

namespace weightfs::cuda_check {
namespace {

using kernels::ChunkCoder;
using kernels::CodedChunk;
using kernels::DecodeJob;
using kernels::EncodeJob;
using kernels::FoldJob;

constexpr std::size_t kStepsMax = 4;

std::unique_ptr<ChunkCoder> make_coder_of_device(Run& run) {
  return kernels::make_gpu_coder(
      {.lanes = 1, .lane_bytes = 1, .on_failure = [&run](std::string_view why, bool) {
         run.expect(false, std::string(why));
       }});
}

ChunkCoder& cpu() {
  static const std::unique_ptr<ChunkCoder> coder = kernels::make_cpu_coder();
  return *coder;
}

/// A chunk, and versions of it that follow one another.
struct Case {
  Kind kind;
  std::vector<Bytes> versions;
  std::string what;
};

/// Sizes in elements: those of the checks of kernels, and chunks of several blocks.
std::size_t chunk_size(Run& run, std::size_t number) {
  constexpr std::array kSizes = {kernels::kBlockElements + 1, 3 * kernels::kBlockElements + 77,
                                 kernels::kChunkBlocks * kernels::kBlockElements - 1,
                                 kernels::kChunkBlocks * kernels::kBlockElements};
  if (run.is_quick()) return number == 0 ? kSizes.front() : any_size(run);
  return number % 2 == 0 ? any_size(run) : kSizes.at(number / 2 % kSizes.size());
}

/// Chunks of all kinds, each with `steps` changes.
std::vector<Case> make_cases(Run& run, std::size_t steps) {
  std::vector<Case> cases;
  for (std::size_t i = 0; i < (run.is_quick() ? 7 : 24); ++i) {
    const Kind kind = kKinds.at((i + run.random(2)) % kKinds.size());
    const std::size_t elements = chunk_size(run, i);
    Case one{
        kind, {make_block(kind, elements, any_style(run), run.rng())}, describe(kind, elements)};
    for (std::size_t step = 0; step < steps; ++step) {
      const Bytes& before = one.versions.back();
      one.versions.push_back(run.random(5) == 0 ? before
                                                : change_block(kind, before, any_share(run),
                                                               any_step(run), run.rng()));
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

std::vector<EncodeJob> encode_jobs(const std::vector<Case>& cases, std::size_t step) {
  std::vector<EncodeJob> jobs(cases.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].kind = cases[i].kind;
    jobs[i].old_chunk = as_span(cases[i].versions[step]);
    jobs[i].new_chunk = as_span(cases[i].versions[step + 1]);
  }
  return jobs;
}

void encoding(Run& run) {
  const std::vector<Case> cases = make_cases(run, 1);
  std::vector<EncodeJob> jobs = encode_jobs(cases, 0);
  std::vector<EncodeJob> expected = jobs;
  cpu().encode(expected);
  make_coder_of_device(run)->encode(jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const EncodeJob &one = jobs[i], &right = expected[i];
    run.expect(one.is_verified && one.lengths == right.lengths && one.coded == right.coded &&
                   one.changed == right.changed && one.old_hash == right.old_hash &&
                   one.new_hash == right.new_hash,
               cases[i].what);
  }
}

/// Brings each chunk to a version of its own, some in place.
void check_decoding(Run& run, const std::vector<Case>& cases) {
  const std::size_t last = cases.front().versions.size() - 1;
  std::vector<std::vector<EncodeJob>> coded;
  for (std::size_t step = 0; step < last; ++step) {
    cpu().encode(coded.emplace_back(encode_jobs(cases, step)));
  }
  std::vector<std::vector<CodedChunk>> steps(cases.size());
  std::vector<Bytes> made(cases.size());
  std::vector<DecodeJob> jobs(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::size_t step = 0; step < last - i % last; ++step) {
      steps[i].push_back({coded[step][i].lengths, coded[step][i].coded});
    }
    const Bytes& first = cases[i].versions.front();
    const bool is_in_place = run.random(2) == 0;
    made[i] = is_in_place ? first : Bytes(first.size());
    jobs[i].kind = cases[i].kind;
    jobs[i].old_chunk = as_span(is_in_place ? made[i] : first);
    jobs[i].steps = steps[i];
    jobs[i].new_chunk = as_writable_span(made[i]);
  }
  make_coder_of_device(run)->decode(jobs);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::size_t version = steps[i].size();
    run.expect(jobs[i].is_decoded && made[i] == cases[i].versions[version] &&
                   jobs[i].hash == coded[version - 1][i].new_hash,
               cases[i].what + ", " + std::to_string(version) + " steps");
  }
}

void decoding(Run& run) { check_decoding(run, make_cases(run, kStepsMax)); }

/// The patches of a chunk from each of its versions to the next.
struct Patches {
  std::vector<std::vector<std::uint32_t>> lengths;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<CodedChunk> views;

  explicit Patches(const Case& one) : lengths(one.versions.size() - 1), bytes(lengths.size()) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      make(one.kind, as_span(one.versions[i]), as_span(one.versions[i + 1]), lengths[i], bytes[i]);
      views.push_back({lengths[i], bytes[i]});
    }
  }

 private:
  static void make(Kind kind, kernels::ByteSpan before, kernels::ByteSpan after,
                   std::vector<std::uint32_t>& lengths, std::vector<std::byte>& bytes) {
    for (std::size_t at = 0; at < after.size(); at += kernels::block_bytes(kind)) {
      const std::size_t size = std::min(kernels::block_bytes(kind), after.size() - at);
      const std::size_t begin = bytes.size();
      kernels::scalar::make_patch(kind, before.subspan(at, size), after.subspan(at, size),
                                  reference_scratch(), bytes);
      lengths.push_back(static_cast<std::uint32_t>(bytes.size() - begin));
    }
  }
};

void check_folding(Run& run, const std::vector<Case>& cases) {
  std::vector<std::unique_ptr<Patches>> patches;
  std::vector<FoldJob> jobs(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    patches.push_back(std::make_unique<Patches>(cases[i]));
    jobs[i].kind = cases[i].kind;
    jobs[i].chunk_bytes = cases[i].versions.front().size();
    jobs[i].patches = patches.back()->views;
  }
  std::vector<FoldJob> expected = jobs;
  cpu().fold(expected);
  make_coder_of_device(run)->fold(jobs);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    run.expect(jobs[i].is_folded && jobs[i].lengths == expected[i].lengths &&
                   jobs[i].folded == expected[i].folded,
               cases[i].what + ", " + std::to_string(jobs[i].patches.size()) + " patches");
  }
}

void folding(Run& run) { check_folding(run, make_cases(run, kStepsMax)); }

/// Nothing in common: blocks are raw and patches dense, so many of them do not fit into a lane.
void steps_and_patches_of_several_trips(Run& run) {
  if (run.is_quick()) return;
  const std::size_t elements = kernels::kChunkBlocks * kernels::kBlockElements - 1;
  Case one{Kind::f32, {}, describe(Kind::f32, elements)};
  for (std::size_t version = 0; version < 12; ++version) {
    one.versions.push_back(make_block(Kind::f32, elements, Style::random, run.rng()));
  }
  check_decoding(run, {one});
  check_folding(run, {one});
}

}  // namespace

std::vector<Check> lane_checks() {
  return {{"lane: encoding chunks", encoding},
          {"lane: decoding chunks by one to four steps", decoding},
          {"lane: adding patches up", folding},
          {"lane: steps and patches of several trips", steps_and_patches_of_several_trips}};
}

}  // namespace weightfs::cuda_check
