// Patches: what a change costs, for each variant, on bf16 blocks that change as in training.
//
// Prints Markdown.  "ns" is per change that goes in; "x read" is the same as a ratio to reading the
// patches into lists of changes, in the same run.  The best of several rounds counts.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kernels/dispatch/patch.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "kernels/scalar/patch_parts.hpp"

namespace weightfs::kernels {
namespace {

constexpr Kind kKind = Kind::bf16;
constexpr std::size_t kBlocks = 24;   // the patches of one leave the caches before it is back
constexpr std::size_t kPatches = 64;  // of each block
constexpr int kRounds = 7;

using Bytes = std::vector<std::byte>;
using Weights = std::vector<std::uint16_t>;

Weights make_weights(std::mt19937_64& rng) {
  Weights weights(kBlockElements);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  for (std::uint16_t& bits : weights) {
    const float value = normal(rng);
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    bits = static_cast<std::uint16_t>(word >> 16);
  }
  return weights;
}

/// About `density` of the weights move, nine of ten by one unit in the last place.
void update(Weights& weights, double density, std::mt19937_64& rng) {
  std::geometric_distribution<std::size_t> gap(density);
  for (std::size_t i = gap(rng); i < weights.size(); i += 1 + gap(rng)) {
    const std::uint64_t draw = rng();
    const auto units = static_cast<std::uint16_t>(draw % 10 != 0 ? 1 : 2 + (draw >> 8) % 8);
    weights[i] =
        static_cast<std::uint16_t>((draw >> 32) % 2 != 0 ? weights[i] + units : weights[i] - units);
  }
}

/// The patches of consecutive versions of some blocks.
struct Patches {
  std::vector<Weights> first;               // version of each block
  std::vector<std::vector<Bytes>> patches;  // by block
  std::size_t changes = 0;                  // of one patch of each block, on average
};

Patches make_patches(double density) {
  std::mt19937_64 rng(1);
  Scratch scratch;
  Patches all;
  std::size_t changes = 0;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    Weights before = make_weights(rng);
    all.first.push_back(before);
    std::vector<Bytes>& patches = all.patches.emplace_back();
    for (std::size_t i = 0; i < kPatches; ++i) {
      Weights after = before;
      update(after, density, rng);
      changes += make_patch(kKind, std::as_bytes(std::span(before)),
                            std::as_bytes(std::span(after)), scratch, patches.emplace_back());
      before = std::move(after);
    }
  }
  all.changes = changes / kPatches;
  return all;
}

/// Shortest time of some rounds, in nanoseconds.
template <typename Body>
double best_ns(Body&& body) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

void check(bool is_good) {
  if (is_good) return;
  std::fprintf(stderr, "patch_bench: a patch was refused\n");
  std::exit(EXIT_FAILURE);
}

/// Calls body(block, patch) for the first `count` patches of each block.
template <typename Body>
void for_each_patch(const Patches& all, std::size_t count, Body&& body) {
  for (std::size_t block = 0; block < kBlocks; ++block) {
    for (std::size_t i = 0; i < count; ++i) body(block, all.patches[block][i]);
  }
}

constexpr std::size_t kPatchesRead = 8;

double read_ns(const Patches& all) {
  const auto changes = std::make_unique<Changes>();
  return best_ns([&] {
    for_each_patch(all, kPatchesRead, [&](std::size_t, const Bytes& patch) {
      check(read_patch(kKind, kBlockElements, patch, *changes));
    });
  });
}

double apply_ns(const Variant& variant, const Patches& all, Scratch& scratch) {
  std::vector<Weights> blocks = all.first;
  return best_ns([&] {
    for_each_patch(all, kPatchesRead, [&](std::size_t block, const Bytes& patch) {
      check(variant.apply_patch(kKind, patch, std::as_writable_bytes(std::span(blocks[block])),
                                scratch));
    });
  });
}

double invert_ns(const Variant& variant, const Patches& all, Scratch& scratch) {
  Bytes inverse;
  return best_ns([&] {
    for_each_patch(all, kPatchesRead, [&](std::size_t, const Bytes& patch) {
      inverse.clear();
      check(variant.invert_patch(kKind, kBlockElements, patch, scratch, inverse));
    });
  });
}

double fold_ns(const Variant& variant, const Patches& all, std::size_t count, Scratch& scratch) {
  std::vector<std::vector<ByteSpan>> spans;
  for (const auto& patches : all.patches) {
    spans.emplace_back(patches.begin(), patches.begin() + static_cast<std::ptrdiff_t>(count));
  }
  Bytes folded;
  return best_ns([&] {
    for (const std::vector<ByteSpan>& patches : spans) {
      folded.clear();
      check(variant.fold_patches(kKind, kBlockElements, patches, scratch, folded));
    }
  });
}

void bench(const Variant& variant, const Patches& all, double density) {
  Scratch scratch;
  const auto per_change = [&](double ns, std::size_t patches) {
    return ns / static_cast<double>(all.changes * patches);
  };
  const double read = per_change(read_ns(all), kPatchesRead);
  const auto print = [&](const char* what, double ns) {
    std::printf("| %.*s | %.2f %% | %s | %.2f | %.2f |\n", static_cast<int>(variant.name.size()),
                variant.name.data(), 100 * density, what, ns, ns / read);
  };
  print("read", read);
  print("apply", per_change(apply_ns(variant, all, scratch), kPatchesRead));
  print("invert", per_change(invert_ns(variant, all, scratch), kPatchesRead));
  for (const std::size_t count : {2UL, 4UL, 8UL, 64UL}) {
    char what[16];
    std::snprintf(what, sizeof what, "fold %zu", count);
    print(what, per_change(fold_ns(variant, all, count, scratch), count));
  }
  std::fflush(stdout);
}

int run() {
  std::printf("bf16, %zu blocks, one thread, best of %d rounds\n\n", kBlocks, kRounds);
  std::printf(
      "| variant | changed | operation | ns per change | x read |\n|---|---|---|---|---|\n");
  for (const double density : {0.003, 0.012}) {
    const Patches all = make_patches(density);
    for (const Variant& variant : variants()) bench(variant, all, density);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace weightfs::kernels

int main() { return weightfs::kernels::run(); }
