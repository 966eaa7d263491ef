// Checks of decode_blocks: golden, made, damaged and hostile blocks, each decoded as the scalar
// reference decodes it, or refused as it refuses it and then left alone.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "kernels/block/changes.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/scalar/ef.hpp"
#include "kernels/scalar/scalar.hpp"
#include "kernels/scalar/xr.hpp"
#include "tests/kernels/cuda_check.hpp"

namespace weightfs::cuda_check {
namespace {

using kernels::Mode;
using kernels::cuda::DecodeTask;

/// A block to decode, and what to call it.
struct Case {
  Kind kind;
  Bytes old_block;
  Bytes coded;
  std::string what;
};

constexpr std::uint8_t kUntouched = 0xA5;

/// Compares what one launch made of these cases with the scalar reference.
void check_batch(Run& run, std::span<const Case> cases) {
  std::vector<DeviceArray<std::uint8_t>> blocks;
  std::vector<CodedArray> coded;
  std::vector<DecodeTask> tasks;
  for (const Case& one : cases) {
    blocks.emplace_back(std::span<const std::uint8_t>(one.old_block));
    coded.emplace_back(one.coded, run.random(16));
    tasks.push_back({coded.back().data_dev(), blocks.back().data_dev(), coded.back().size(),
                     elements_of(one.kind, one.old_block), one.kind});
  }
  DeviceArray<DecodeTask> tasks_dev{std::span<const DecodeTask>(tasks)};
  const Bytes untouched(cases.size(), kUntouched);
  DeviceArray<std::uint8_t> is_good_dev{std::span<const std::uint8_t>(untouched)};
  require(kernels::cuda::decode_blocks(tasks_dev.data_dev(),
                                       static_cast<std::uint32_t>(cases.size()),
                                       is_good_dev.data_dev(), nullptr));
  const Bytes is_good = is_good_dev.download();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    Bytes expected(one.old_block.size());
    const bool is_decoded =
        kernels::scalar::decode_block(one.kind, as_span(one.old_block), as_span(one.coded),
                                      as_writable_span(expected), reference_scratch());
    if (!is_decoded) expected = one.old_block;
    run.expect(is_good[i] == (is_decoded ? 1 : 0) && blocks[i].download() == expected,
               one.what + (is_decoded ? " (good)" : " (malformed)"));
  }
}

void check_cases(Run& run, std::span<const Case> cases) {
  constexpr std::size_t kBatch = 64;
  for (std::size_t at = 0; at < cases.size(); at += kBatch) {
    check_batch(run, cases.subspan(at, std::min(kBatch, cases.size() - at)));
  }
}

// How blocks are coded --------------------------------------------------------------------------

struct Parameters {
  unsigned ebase, z;
};

/// In this mode, whatever its size; empty if that is not possible.
Bytes encode_as(Kind kind, Mode mode, const Bytes& old_block, const Bytes& new_block,
                Parameters parameters) {
  static const auto changes = std::make_unique<kernels::Changes>();
  constexpr std::size_t kAnySize = std::size_t{1} << 30;
  std::vector<std::byte> coded;
  if (mode == Mode::same) return old_block == new_block ? Bytes{0} : Bytes{};
  if (mode == Mode::raw) {
    Bytes raw{static_cast<std::uint8_t>(mode)};
    raw.insert(raw.end(), new_block.begin(), new_block.end());
    return raw;
  }
  kernels::find_changes(kind, as_span(old_block), as_span(new_block), *changes);
  if (changes->count == 0) return {};
  if (mode == Mode::ef) {
    kernels::encode_ef(*changes, elements_of(kind, old_block), kAnySize, coded);
  } else {
    reference_scratch().reset();
    const kernels::ClassedChanges classed = kernels::classify(
        kind, as_span(old_block), *changes, parameters.ebase, reference_scratch());
    kernels::encode_xr(kind, mode, parameters.ebase, parameters.z, classed, kAnySize, coded);
  }
  return to_bytes(coded);
}

constexpr std::array kModes = {Mode::same, Mode::raw, Mode::ef, Mode::xr, Mode::xs};
constexpr std::array kModeNames = {"SAME", "RAW", "EF", "XR", "DIFF", "XS"};

/// What the encoder takes, or anything that a decoder takes.
Parameters random_parameters(Run& run, Kind kind, Mode mode, const Bytes& old_block) {
  const unsigned chosen = kernels::choose_ebase(kind, as_span(old_block));
  const std::array<unsigned, 4> ebases = {chosen, chosen, 0,
                                          static_cast<unsigned>(run.random(256))};
  const std::size_t z_end = mode == Mode::xs ? 16 : 1 + kernels::kZMax;
  const std::array<unsigned, 3> zs = {static_cast<unsigned>(run.random(5)),
                                      static_cast<unsigned>(run.random(16)),
                                      static_cast<unsigned>(run.random(z_end))};
  return {ebases.at(run.random(4)), zs.at(run.random(3))};
}

Case random_case(Run& run, std::size_t elements, double share) {
  for (;;) {
    const Kind kind = any_kind(run);
    const Mode mode = kModes.at(run.random(kModes.size()));
    const Bytes old_block = make_block(kind, elements, any_style(run), run.rng());
    const Bytes new_block = mode == Mode::same
                                ? old_block
                                : change_block(kind, old_block, share, any_step(run), run.rng());
    const Parameters parameters = random_parameters(run, kind, mode, old_block);
    Bytes coded = encode_as(kind, mode, old_block, new_block, parameters);
    if (coded.empty()) {
      share = 1;  // nothing changed, or too much: the next one will do
      continue;
    }
    return {kind, old_block, std::move(coded),
            std::string(kModeNames.at(static_cast<std::size_t>(mode))) + ", " +
                describe(kind, elements) + ", ebase " + std::to_string(parameters.ebase) + ", z " +
                std::to_string(parameters.z)};
  }
}

// Checks ----------------------------------------------------------------------------------------

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What stands behind the next `"name":` from `at` on, up to the next comma, bracket or line; `at`
/// moves behind it.  Empty if there is none.
std::string next_value(const std::string& json, const std::string& name, std::size_t& at) {
  const std::size_t key = json.find('"' + name + '"', at);
  if (key == std::string::npos) return {};
  const std::size_t begin = json.find_first_not_of("\" :", key + name.size() + 2);
  at = json.find_first_of("\",}\n", begin);
  return json.substr(begin, at - begin);
}

/// The cases of tests/data/codec/vectors.json, good ones and such to refuse: the fields of each
/// follow one another in alphabetical order.
std::vector<Case> golden_cases(const Run& run) {
  const std::filesystem::path folder = std::filesystem::path(run.data()) / "codec";
  const Bytes file = read_file(folder / "vectors.json");
  const std::string json(file.begin(), file.end());
  std::vector<Case> cases;
  std::size_t at = 0;
  for (;;) {
    const std::string block = next_value(json, "block", at);
    if (block.empty()) return cases;
    const int kind = std::stoi(next_value(json, "kind", at));
    const std::string old_block = next_value(json, "old", at);
    cases.push_back(
        {static_cast<Kind>(kind), read_file(folder / old_block), read_file(folder / block), block});
  }
}

void golden_vectors(Run& run) {
  const std::vector<Case> cases = golden_cases(run);
  run.expect(cases.size() >= 40, "golden vectors are missing in " + run.data());
  for (const Case& one : cases) {
    run.expect(!one.old_block.empty(), one.what + " has no old block");
  }
  check_cases(run, cases);
}

void every_truncation_of_golden_vectors(Run& run) {
  std::vector<Case> cases;
  for (const Case& golden : golden_cases(run)) {
    if (golden.coded.empty() || golden.coded.size() > 200) continue;
    const std::size_t step = run.is_quick() ? 1 + run.random(16) : 1 + run.random(4);
    for (std::size_t size = run.random(step); size < golden.coded.size(); size += step) {
      Case cut = golden;
      cut.coded.resize(size);
      cut.what += ", the first " + std::to_string(size) + " bytes";
      cases.push_back(std::move(cut));
    }
  }
  check_cases(run, cases);
}

void blocks_of_any_kind_mode_and_size(Run& run) {
  std::vector<Case> cases;
  for (int i = 0; i < (run.is_quick() ? 100 : 400); ++i) {
    cases.push_back(random_case(run, any_size(run), any_share(run)));
  }
  check_cases(run, cases);
}

void damaged_blocks(Run& run) {
  std::vector<Case> cases;
  for (int i = 0; i < (run.is_quick() ? 200 : 1500); ++i) {
    Case one = random_case(run, any_size(run), any_share(run));
    one.coded = damage(one.coded, run.rng());
    one.what = "damaged " + one.what;
    cases.push_back(std::move(one));
  }
  check_cases(run, cases);
}

/// A plausible header, and behind it bits of one density: lists run out of their ranges here.
Bytes hostile_block(Run& run, std::size_t bytes_max) {
  constexpr std::array kCodedModes = {Mode::ef, Mode::xr, Mode::xs};
  Bytes coded(1 + run.random(std::min<std::size_t>(bytes_max, 600)));
  const std::size_t density = 1 + run.random(7);
  for (std::uint8_t& byte : coded) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      byte = static_cast<std::uint8_t>(byte | (run.random(8) < density ? 1U : 0U) << bit);
    }
  }
  const Mode mode = kCodedModes.at(run.random(kCodedModes.size()));
  coded[0] = static_cast<std::uint8_t>(mode);
  const auto set_small = [&](std::size_t at, std::size_t bound) {
    if (at < coded.size()) coded[at] = static_cast<std::uint8_t>(run.random(bound));
  };
  if (mode == Mode::ef) {
    for (const std::size_t high : {2u, 4u, 6u}) set_small(high, 2);
  } else if (mode == Mode::xr) {
    set_small(3, 1);
    set_small(4, 46);
    set_small(5, 19);
  }
  return coded;
}

void hostile_headers(Run& run) {
  std::vector<Case> cases;
  for (int i = 0; i < (run.is_quick() ? 200 : 2000); ++i) {
    const Kind kind = any_kind(run);
    Bytes old_block = make_block(kind, any_size(run), any_style(run), run.rng());
    Bytes coded = hostile_block(run, 1 + old_block.size());
    cases.push_back({kind, std::move(old_block), std::move(coded), "hostile " + std::to_string(i)});
  }
  check_cases(run, cases);
}

void full_blocks(Run& run) {
  std::vector<Case> cases;
  const std::size_t shares = run.is_quick() ? 1 : 4;
  for (std::size_t i = 0; i < shares; ++i) {
    for (const double share : {0.012, any_share(run)}) {
      cases.push_back(random_case(run, kernels::kBlockElements - run.random(2), share));
    }
  }
  check_cases(run, cases);
}

void nothing_to_decode(Run& run) {
  run.expect(kernels::cuda::decode_blocks(nullptr, 0, nullptr, nullptr) == cudaSuccess, "no task");
}

}  // namespace

std::vector<Check> decode_checks() {
  return {{"decode: golden vectors", golden_vectors},
          {"decode: every truncation of golden vectors", every_truncation_of_golden_vectors},
          {"decode: blocks of any kind, mode and size", blocks_of_any_kind_mode_and_size},
          {"decode: damaged blocks", damaged_blocks},
          {"decode: hostile headers", hostile_headers},
          {"decode: full blocks", full_blocks},
          {"decode: nothing to decode", nothing_to_decode}};
}

}  // namespace weightfs::cuda_check
