// Checks of apply_patches and fold_patches: the same bytes, and the same refusals, as the scalar
// reference; a refused patch leaves its block alone.
#include <algorithm>
#include <optional>

#include "kernels/cuda/kernels.hpp"
#include "kernels/scalar/scalar.hpp"
#include "tests/kernels/cuda_check.hpp"

namespace weightfs::cuda_check {
namespace {

using kernels::cuda::CodedResult;
using kernels::cuda::DecodeTask;
using kernels::cuda::FoldTask;
using kernels::cuda::Patch;

/// A block, and patches that follow one another.
struct Case {
  Kind kind;
  Bytes block;
  std::vector<Bytes> patches;
  bool inverts = false;
  std::string what;
};

/// The patch from one block to the next; now and then its DIFF form, which is legal too.
Bytes make_patch(Run& run, Kind kind, const Bytes& before, const Bytes& after) {
  std::vector<std::byte> patch;
  kernels::scalar::make_patch(kind, as_span(before), as_span(after), reference_scratch(), patch);
  if (patch.empty() && run.random(2) == 0) return Bytes{0};
  if (run.random(6) != 0) return to_bytes(patch);
  Bytes differences(before.size());  // from zeros, as plain bytes
  Bytes dense{static_cast<std::uint8_t>(kernels::Mode::diff)};
  for (std::uint8_t& byte : differences) byte = static_cast<std::uint8_t>(run.random(256));
  dense.insert(dense.end(), differences.begin(), differences.end());
  return dense;
}

Case random_case(Run& run, std::size_t elements, std::size_t patches) {
  Case one{any_kind(run), {}, {}, false, {}};
  one.block = make_block(one.kind, elements, any_style(run), run.rng());
  Bytes before = one.block;
  for (std::size_t i = 0; i < patches; ++i) {
    // Now and then back to where it began: changes vanish.
    const Bytes after = run.random(5) == 0 ? one.block
                                           : change_block(one.kind, before, any_share(run),
                                                          any_step(run), run.rng());
    one.patches.push_back(make_patch(run, one.kind, before, after));
    before = after;
  }
  one.what = describe(one.kind, elements) + ", " + std::to_string(patches) + " patches";
  return one;
}

std::vector<Case> random_cases(Run& run, int count, std::size_t patches_max, bool are_damaged) {
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    cases.push_back(random_case(run, any_size(run), 1 + run.random(patches_max)));
    Case& one = cases.back();
    one.inverts = run.random(2) == 0;
    if (!are_damaged) continue;
    Bytes& patch = one.patches.at(run.random(one.patches.size()));
    patch = damage(patch, run.rng());
    one.what = "damaged, " + one.what;
  }
  return cases;
}

// Apply -----------------------------------------------------------------------------------------

/// Applies the first patch of each case.
void check_applying(Run& run, std::span<const Case> cases) {
  std::vector<DeviceArray<std::uint8_t>> blocks;
  std::vector<CodedArray> patches;
  std::vector<DecodeTask> tasks;
  for (const Case& one : cases) {
    blocks.emplace_back(std::span<const std::uint8_t>(one.block));
    patches.emplace_back(one.patches.front(), run.random(16));
    tasks.push_back({patches.back().data_dev(), blocks.back().data_dev(), patches.back().size(),
                     elements_of(one.kind, one.block), one.kind});
  }
  DeviceArray<DecodeTask> tasks_dev{std::span<const DecodeTask>(tasks)};
  DeviceArray<std::uint8_t> is_good_dev(cases.size());
  require(kernels::cuda::apply_patches(tasks_dev.data_dev(),
                                       static_cast<std::uint32_t>(cases.size()),
                                       is_good_dev.data_dev(), nullptr));
  const Bytes is_good = is_good_dev.download();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    Bytes expected = one.block;
    const bool is_applied = kernels::scalar::apply_patch(
        one.kind, as_span(one.patches.front()), as_writable_span(expected), reference_scratch());
    if (!is_applied) expected = one.block;
    run.expect(is_good[i] == (is_applied ? 1 : 0) && blocks[i].download() == expected,
               one.what + (is_applied ? " (good)" : " (malformed)"));
  }
}

void applying(Run& run) {
  check_applying(run, random_cases(run, run.is_quick() ? 60 : 300, 1, false));
}

void applying_damaged_patches(Run& run) {
  check_applying(run, random_cases(run, run.is_quick() ? 80 : 600, 1, true));
}

// Fold ------------------------------------------------------------------------------------------

/// The patches of one case on the device.
struct PatchesOnDevice {
  std::vector<CodedArray> bytes;
  DeviceArray<Patch> list;

  PatchesOnDevice(Run& run, const Case& one)
      : bytes(upload(run, one)), list(std::span<const Patch>(describe_all(bytes))) {}

 private:
  static std::vector<CodedArray> upload(Run& run, const Case& one) {
    std::vector<CodedArray> arrays;
    for (const Bytes& patch : one.patches) arrays.emplace_back(patch, run.random(16));
    return arrays;
  }
  static std::vector<Patch> describe_all(std::vector<CodedArray>& arrays) {
    std::vector<Patch> list;
    for (CodedArray& array : arrays) list.push_back({array.data_dev(), array.size()});
    return list;
  }
};

/// What folding, and then inverting if the case wants it, gives; nullopt if a patch is malformed.
std::optional<Bytes> fold_as_reference(const Case& one) {
  std::vector<kernels::ByteSpan> patches;
  for (const Bytes& patch : one.patches) patches.push_back(as_span(patch));
  std::vector<std::byte> folded;
  std::vector<std::byte> inverse;
  if (!kernels::scalar::fold_patches(one.kind, elements_of(one.kind, one.block), patches,
                                     reference_scratch(), folded)) {
    return std::nullopt;
  }
  if (!one.inverts) return to_bytes(folded);
  if (!kernels::scalar::invert_patch(one.kind, elements_of(one.kind, one.block), folded,
                                     reference_scratch(), inverse)) {
    return std::nullopt;
  }
  return to_bytes(inverse);
}

void check_folding(Run& run, std::span<const Case> cases) {
  std::vector<PatchesOnDevice> patches;
  std::vector<DeviceArray<std::uint8_t>> folded;
  std::vector<FoldTask> tasks;
  for (const Case& one : cases) {
    PatchesOnDevice& of_case = patches.emplace_back(run, one);
    folded.emplace_back(kernels::coded_block_bytes_max(one.kind));
    tasks.push_back({of_case.list.data_dev(), static_cast<std::uint32_t>(one.patches.size()),
                     elements_of(one.kind, one.block), one.kind, one.inverts,
                     folded.back().data_dev()});
  }
  const auto count = static_cast<std::uint32_t>(cases.size());
  DeviceArray<FoldTask> tasks_dev{std::span<const FoldTask>(tasks)};
  DeviceArray<CodedResult> results_dev(count);
  DeviceArray<std::uint8_t> scratch_dev(kernels::cuda::fold_scratch_bytes(count));
  require(kernels::cuda::fold_patches(tasks_dev.data_dev(), count, results_dev.data_dev(),
                                      scratch_dev.data_dev(), nullptr));
  const std::vector<CodedResult> results = results_dev.download();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::optional<Bytes> expected = fold_as_reference(cases[i]);
    Bytes result = folded[i].download();
    result.resize(std::min<std::size_t>(result.size(), results[i].size));
    run.expect(expected ? results[i].is_good == 1 && result == *expected : results[i].is_good == 0,
               cases[i].what + (expected ? " (good)" : " (malformed)"));
  }
}

void check_folding_in_batches(Run& run, const std::vector<Case>& cases) {
  constexpr std::size_t kBatch = 32;
  for (std::size_t at = 0; at < cases.size(); at += kBatch) {
    check_folding(run, std::span(cases).subspan(at, std::min(kBatch, cases.size() - at)));
  }
}

void folding(Run& run) {
  check_folding_in_batches(run, random_cases(run, run.is_quick() ? 50 : 300, 4, false));
}

void folding_damaged_patches(Run& run) {
  check_folding_in_batches(run, random_cases(run, run.is_quick() ? 50 : 300, 3, true));
}

/// Each thread block folds several tasks, one after another.
void folding_more_blocks_than_run_at_once(Run& run) {
  std::vector<Case> cases;
  while (cases.size() < 410) {
    cases.push_back(random_case(run, 1 + run.random(100), 1 + run.random(2)));
  }
  check_folding(run, cases);
}

void folding_no_patch_gives_an_empty_one(Run& run) {
  check_folding(run, std::vector<Case>{random_case(run, 100, 0)});
}

void full_blocks(Run& run) {
  const std::vector<Case> cases = {random_case(run, kernels::kBlockElements - run.random(2), 2)};
  check_applying(run, cases);
  check_folding(run, cases);
}

void nothing_to_do(Run& run) {
  run.expect(kernels::cuda::apply_patches(nullptr, 0, nullptr, nullptr) == cudaSuccess, "apply");
  run.expect(kernels::cuda::fold_patches(nullptr, 0, nullptr, nullptr, nullptr) == cudaSuccess,
             "fold");
}

}  // namespace

std::vector<Check> patch_checks() {
  return {{"patch: applying", applying},
          {"patch: applying damaged patches", applying_damaged_patches},
          {"patch: folding and inverting", folding},
          {"patch: folding damaged patches", folding_damaged_patches},
          {"patch: folding more blocks than run at once", folding_more_blocks_than_run_at_once},
          {"patch: folding no patch gives an empty one", folding_no_patch_gives_an_empty_one},
          {"patch: full blocks", full_blocks},
          {"patch: nothing to do", nothing_to_do}};
}

}  // namespace weightfs::cuda_check
