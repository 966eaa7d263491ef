// Checks of what makes things of blocks: encode_blocks, make_patches, find_changes and hash_chunks
// give what the scalar reference gives, byte for byte, and write nothing else.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "kernels/block/changes.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/scalar/scalar.hpp"
#include "tests/kernels/cuda_check.hpp"

namespace weightfs::cuda_check {
namespace {

using kernels::cuda::CodedResult;
using kernels::cuda::DiffTask;
using kernels::cuda::EncodeTask;
using kernels::cuda::HashTask;

struct Case {
  Kind kind;
  Bytes old_block, new_block;
  std::string what;

  [[nodiscard]] std::uint32_t elements() const { return elements_of(kind, old_block); }
};

// Cases -----------------------------------------------------------------------------------------

/// Sizes around those of vectors, words, warps and sections.
constexpr std::array kEdgeSizes = {1,   2,   3,    4,    5,    7,    8,    9,    15,   16,  17,
                                   31,  32,  33,   63,   64,   65,   127,  128,  129,  255, 256,
                                   257, 999, 2047, 2048, 2049, 4095, 4096, 4097, 8193, 8200};
constexpr std::array kShares = {0.0003, 0.004, 0.012, 0.034, 0.1, 0.25, 0.5, 0.51, 0.9, 0.98, 1.0};

std::size_t random_size(Run& run) {
  if (run.random(2) == 0) {
    return static_cast<std::size_t>(kEdgeSizes.at(run.random(kEdgeSizes.size())));
  }
  return 1 + run.random(run.is_quick() ? 4000 : 12000);
}

Case make_case(Run& run, Kind kind, std::size_t elements, double share) {
  const Style style = kStyles.at(run.random(kStyles.size()));
  const Step step = kSteps.at(run.random(kSteps.size()));
  Bytes old_block = make_block(kind, elements, style, run.rng());
  Bytes new_block = change_block(kind, old_block, share, step, run.rng());
  return {kind, std::move(old_block), std::move(new_block),
          describe(kind, elements) + ", share " + std::to_string(share) + ", style " +
              std::to_string(static_cast<int>(style)) + ", step " +
              std::to_string(static_cast<int>(step))};
}

Case random_case(Run& run) {
  return make_case(run, kKinds.at(run.random(kKinds.size())), random_size(run),
                   kShares.at(run.random(kShares.size())));
}

/// One element changed: the first, the last, or any.
Case one_change(Run& run, Kind kind, std::size_t elements) {
  Case one = make_case(run, kind, elements, 0);
  const std::array<std::size_t, 3> places = {0, elements - 1, run.random(elements)};
  const std::size_t byte = places.at(run.random(3)) * kernels::width_bytes(kind) +
                           run.random(kernels::width_bytes(kind));
  one.new_block[byte] = static_cast<std::uint8_t>(one.new_block[byte] ^ 1U << run.random(8));
  one.what += ", one change";
  return one;
}

/// All bits inverted, or only the signs: the largest differences.
Case all_changed(Run& run, Kind kind, std::size_t elements) {
  Case one = make_case(run, kind, elements, 0);
  const bool only_signs = run.random(2) == 0;
  const std::size_t width = kernels::width_bytes(kind);
  for (std::size_t i = 0; i < one.new_block.size(); ++i) {
    const unsigned mask = !only_signs ? 0xFFU : i % width == width - 1 ? 0x80U : 0U;
    one.new_block[i] = static_cast<std::uint8_t>(one.new_block[i] ^ mask);
  }
  one.what += only_signs ? ", all signs changed" : ", all inverted";
  return one;
}

// Coded blocks ----------------------------------------------------------------------------------

constexpr std::uint8_t kUntouched = 0xA5;

/// What the device wrote: the bytes before, of, and behind the coded block.
struct Output {
  DeviceArray<std::uint8_t> memory;
  std::size_t misalignment;
};

using Kernel = cudaError_t (*)(const EncodeTask*, std::uint32_t, CodedResult*, void*, cudaStream_t);
using Reference = std::size_t (*)(Kind, kernels::ByteSpan, kernels::ByteSpan, kernels::Scratch&,
                                  std::vector<std::byte>&);

/// Whether the output is `expected` and the bytes around it are as they were.
bool is_exactly(const Output& output, const Bytes& expected, Kind kind, std::size_t plain_bytes) {
  const Bytes bytes = output.memory.download();
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(output.misalignment);
  const auto is_untouched = [](std::uint8_t byte) { return byte == kUntouched; };
  return std::equal(expected.begin(), expected.end(), begin) &&
         std::all_of(bytes.begin(), begin, is_untouched) &&
         std::all_of(begin + static_cast<std::ptrdiff_t>(
                                 std::min(1 + plain_bytes, kernels::coded_block_bytes_max(kind))),
                     bytes.end(), is_untouched);
}

void check_batch(Run& run, std::span<const Case> cases, Kernel kernel, Reference reference) {
  std::vector<DeviceArray<std::uint8_t>> blocks;
  std::vector<Output> outputs;
  std::vector<EncodeTask> tasks;
  for (const Case& one : cases) {
    blocks.emplace_back(std::span<const std::uint8_t>(one.old_block));
    blocks.emplace_back(std::span<const std::uint8_t>(one.new_block));
    const std::size_t misalignment = run.random(16);
    const Bytes untouched(misalignment + kernels::coded_block_bytes_max(one.kind), kUntouched);
    outputs.push_back({DeviceArray<std::uint8_t>(std::span(untouched)), misalignment});
    tasks.push_back({blocks[blocks.size() - 2].data_dev(), blocks.back().data_dev(),
                     outputs.back().memory.data_dev() + misalignment, one.elements(), one.kind});
  }
  const auto count = static_cast<std::uint32_t>(cases.size());
  DeviceArray<EncodeTask> tasks_dev{std::span<const EncodeTask>(tasks)};
  DeviceArray<CodedResult> results_dev(cases.size());
  DeviceArray<std::uint8_t> scratch_dev(kernels::cuda::encode_scratch_bytes(count));
  require(
      kernel(tasks_dev.data_dev(), count, results_dev.data_dev(), scratch_dev.data_dev(), nullptr));
  const std::vector<CodedResult> results = results_dev.download();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    std::vector<std::byte> coded;
    const std::size_t changed = reference(one.kind, as_span(one.old_block), as_span(one.new_block),
                                          reference_scratch(), coded);
    const bool is_right =
        results[i].is_good == 1 && results[i].size == coded.size() && results[i].changed == changed;
    run.expect(is_right && is_exactly(outputs[i], to_bytes(coded), one.kind, one.new_block.size()),
               one.what + ": mode " + (coded.empty() ? "-" : std::to_string(int(coded[0]))) + ", " +
                   std::to_string(coded.size()) + " bytes expected, got " +
                   std::to_string(results[i].size));
  }
}

void check_coded(Run& run, std::span<const Case> cases) {
  constexpr std::size_t kBatch = 32;
  for (std::size_t at = 0; at < cases.size(); at += kBatch) {
    const auto batch = cases.subspan(at, std::min(kBatch, cases.size() - at));
    check_batch(run, batch, kernels::cuda::encode_blocks, kernels::scalar::encode_block);
    check_batch(run, batch, kernels::cuda::make_patches, kernels::scalar::make_patch);
  }
}

void coded_random(Run& run) {
  std::vector<Case> cases;
  for (int i = 0; i < (run.is_quick() ? 60 : 300); ++i) cases.push_back(random_case(run));
  check_coded(run, cases);
}

void coded_edges(Run& run) {
  std::vector<Case> cases;
  for (const Kind kind : kKinds) {
    for (const int size : kEdgeSizes) {
      if (run.is_quick() && run.random(4) != 0) continue;
      const auto elements = static_cast<std::size_t>(size);
      switch (run.random(3)) {
        case 0:
          cases.push_back(one_change(run, kind, elements));
          break;
        case 1:
          cases.push_back(all_changed(run, kind, elements));
          break;
        default:
          cases.push_back(make_case(run, kind, elements, kShares.at(run.random(kShares.size()))));
      }
    }
  }
  check_coded(run, cases);
}

void coded_full_blocks(Run& run) {
  std::vector<Case> cases;
  for (const Kind kind : kKinds) {
    if (run.is_quick() && run.random(3) != 0) continue;
    const std::size_t elements = kernels::kBlockElements - run.random(2);
    cases.push_back(make_case(run, kind, elements, 0.012));
    cases.push_back(make_case(run, kind, elements, kShares.at(run.random(kShares.size()))));
    cases.push_back(run.random(2) == 0 ? one_change(run, kind, elements)
                                       : all_changed(run, kind, elements));
  }
  check_coded(run, cases);
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The old blocks of tests/data/codec that come with a new one; what there is of others is coded.
void coded_golden_vectors(Run& run) {
  const std::filesystem::path folder = std::filesystem::path(run.data()) / "codec";
  std::vector<Case> cases;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const std::string name = file.substr(0, file.find('.'));
    if (!file.ends_with(".new.bin") || !std::filesystem::exists(folder / (name + ".old.bin"))) {
      continue;
    }
    const Kind kind = name.starts_with("u8_")        ? Kind::u8
                      : name.starts_with("f16_")     ? Kind::f16
                      : name.starts_with("f32_")     ? Kind::f32
                      : name.starts_with("f8_e4m3_") ? Kind::f8_e4m3
                      : name.starts_with("f8_e5m2_") ? Kind::f8_e5m2
                                                     : Kind::bf16;
    cases.push_back({kind, read_file(folder / (name + ".old.bin")), read_file(entry.path()), name});
  }
  run.expect(cases.size() >= 10, "golden vectors are missing in " + run.data());
  check_coded(run, cases);
}

/// Alternating, in runs, in one half: positions that random ones do not give.
void coded_patterns(Run& run) {
  std::vector<Case> cases;
  for (int i = 0; i < (run.is_quick() ? 12 : 60); ++i) {
    Case one = make_case(run, kKinds.at(run.random(kKinds.size())), random_size(run), 0);
    const std::size_t period = 1 + run.random(1 + run.random(600));
    const std::size_t run_length = 1 + run.random(period);
    const std::size_t begin = run.random(one.elements());
    const std::size_t width = kernels::width_bytes(one.kind);
    for (std::size_t at = begin; at < one.elements(); ++at) {
      if ((at - begin) % period < run_length) one.new_block[at * width] ^= 1;
    }
    one.what += ", pattern of " + std::to_string(period);
    cases.push_back(std::move(one));
  }
  check_coded(run, cases);
}

// Changes ---------------------------------------------------------------------------------------

void check_changes(Run& run, const Case& one) {
  static const auto expected = std::make_unique<kernels::Changes>();
  kernels::find_changes(one.kind, as_span(one.old_block), as_span(one.new_block), *expected);
  DeviceArray<std::uint8_t> old_dev{std::span<const std::uint8_t>(one.old_block)};
  DeviceArray<std::uint8_t> new_dev{std::span<const std::uint8_t>(one.new_block)};
  DeviceArray<std::uint16_t> positions_dev(one.elements());
  DeviceArray<std::int32_t> differences_dev(one.elements());
  const DiffTask task{old_dev.data_dev(),         new_dev.data_dev(), positions_dev.data_dev(),
                      differences_dev.data_dev(), one.elements(),     one.kind};
  DeviceArray<DiffTask> tasks_dev{std::span<const DiffTask>(&task, 1)};
  DeviceArray<std::uint32_t> counts_dev(1);
  require(kernels::cuda::find_changes(tasks_dev.data_dev(), 1, counts_dev.data_dev(), nullptr));
  const std::uint32_t count = counts_dev.download().front();
  const std::vector<std::uint16_t> positions = positions_dev.download();
  const std::vector<std::int32_t> differences = differences_dev.download();
  run.expect(
      count == expected->count &&
          std::equal(positions.begin(), positions.begin() + count, expected->position.begin()) &&
          std::equal(differences.begin(), differences.begin() + count,
                     expected->difference.begin()),
      one.what);
}

void changes_of_any_block(Run& run) {
  for (int i = 0; i < (run.is_quick() ? 30 : 200); ++i) check_changes(run, random_case(run));
  for (const Kind kind : kKinds) {
    check_changes(run, one_change(run, kind, kernels::kBlockElements));
    check_changes(run, all_changed(run, kind, kernels::kBlockElements - run.random(40)));
  }
}

// Hashes ----------------------------------------------------------------------------------------

void check_hashes(Run& run, std::span<const std::size_t> sizes) {
  std::vector<Bytes> chunks;
  std::vector<DeviceArray<std::uint8_t>> chunks_dev;
  std::vector<HashTask> tasks;
  for (const std::size_t size : sizes) {
    chunks.push_back(make_block(Kind::u8, size, Style::random, run.rng()));
    chunks_dev.emplace_back(std::span<const std::uint8_t>(chunks.back()));
    tasks.push_back({chunks_dev.back().data_dev(), size});
  }
  DeviceArray<HashTask> tasks_dev{std::span<const HashTask>(tasks)};
  DeviceArray<std::uint64_t> hashes_dev(sizes.size());
  require(kernels::cuda::hash_chunks(tasks_dev.data_dev(), static_cast<std::uint32_t>(sizes.size()),
                                     hashes_dev.data_dev(), nullptr));
  const std::vector<std::uint64_t> hashes = hashes_dev.download();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    run.expect(hashes[i] == kernels::scalar::hash_chunk(as_span(chunks[i])),
               "hash of " + std::to_string(sizes[i]) + " bytes");
  }
}

void hashes_of_any_length(Run& run) {
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size < 1100; size += run.is_quick() ? 1 + run.random(40) : 1) {
    sizes.push_back(size);
  }
  for (const std::size_t block : {1024U, 4096U, 32768U, 65536U}) {
    for (const std::size_t size : {block - 64, block - 1, block, block + 1, block + 64}) {
      sizes.push_back(size);
    }
  }
  for (int i = 0; i < 20; ++i) sizes.push_back(1 + run.random(run.is_quick() ? 40000 : 400000));
  sizes.push_back(std::size_t{1} << 20);
  if (!run.is_quick()) sizes.push_back(std::size_t{4} << 20);
  check_hashes(run, sizes);
}

void nothing_to_do(Run& run) {
  run.expect(kernels::cuda::encode_scratch_bytes(0) == 0, "no scratch memory");
  run.expect(
      kernels::cuda::encode_blocks(nullptr, 0, nullptr, nullptr, nullptr) == cudaSuccess &&
          kernels::cuda::make_patches(nullptr, 0, nullptr, nullptr, nullptr) == cudaSuccess &&
          kernels::cuda::find_changes(nullptr, 0, nullptr, nullptr) == cudaSuccess &&
          kernels::cuda::hash_chunks(nullptr, 0, nullptr, nullptr) == cudaSuccess,
      "no task");
}

}  // namespace

std::vector<Check> encode_checks() {
  return {{"encode: golden vectors", coded_golden_vectors},
          {"encode: blocks of any kind, size and density", coded_random},
          {"encode: sizes at the edges, one change, all changed", coded_edges},
          {"encode: runs and patterns", coded_patterns},
          {"encode: full blocks", coded_full_blocks},
          {"diff: blocks of any kind, size and density", changes_of_any_block},
          {"hash: chunks of any length", hashes_of_any_length},
          {"encode, diff, hash: nothing to do", nothing_to_do}};
}

}  // namespace weightfs::cuda_check
