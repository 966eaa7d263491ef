// cuda_check [--seeds A..B] [--quick] [--only TEXT] [--data FOLDER]: every check whose name begins
// with TEXT, once for each seed.  Prints a line for each check and one for all.  Exit code 77:
// there is no device.
#include "tests/kernels/cuda_check.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <random>

#include "tests/support/random.hpp"

namespace weightfs::cuda_check {
namespace {

constexpr int kSkipped = 77;

std::vector<Check> checks_beginning_with(const std::string& text) {
  std::vector<Check> all;
  for (const auto& checks : {decode_checks(), encode_checks(), patch_checks(), lane_checks()}) {
    all.insert(all.end(), checks.begin(), checks.end());
  }
  std::erase_if(
      all, [&text](const Check& check) { return !std::string_view(check.name).starts_with(text); });
  return all;
}

struct Options {
  std::uint64_t first_seed = 1, last_seed = 1;
  bool is_quick = false;
  std::string only;
  std::string data = "tests/data";
};

std::optional<Options> parse(std::span<char* const> arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const bool has_value = i + 1 < arguments.size();
    if (argument == "--quick") {
      options.is_quick = true;
    } else if (argument == "--only" && has_value) {
      options.only = arguments[++i];
    } else if (argument == "--data" && has_value) {
      options.data = arguments[++i];
    } else if (argument == "--seeds" && has_value) {
      char* end = nullptr;
      options.first_seed = options.last_seed = std::strtoull(arguments[++i], &end, 10);
      if (std::strncmp(end, "..", 2) == 0) options.last_seed = std::strtoull(end + 2, &end, 10);
      if (*end != '\0' || options.last_seed < options.first_seed) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  return options;
}

struct Counts {
  std::size_t cases = 0, wrong = 0;
};

/// Seeds the cases, and the emulator's scheduling where there is one.
Counts run_seed(const Check& check, std::uint64_t seed, const Options& options) {
#ifdef CUDA_ON_CPU
  cuda_on_cpu::reseed(seed);
#endif
  Run run(seed, options.is_quick, options.data);
  try {
    check.run(run);
  } catch (const std::exception& error) {
    run.expect(false, error.what());
  }
  if (run.wrong() > 0) {
    std::printf("    %s: %zu wrong; replay: --seeds %llu (CUDA_ON_CPU_SEED=%llu)\n", check.name,
                run.wrong(), static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(seed));
  }
  return {run.cases(), run.wrong()};
}

Counts run_check(const Check& check, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  Counts counts;
  for (std::uint64_t seed = options.first_seed; seed <= options.last_seed; ++seed) {
    const Counts of_seed = run_seed(check, seed, options);
    counts.cases += of_seed.cases;
    counts.wrong += of_seed.wrong;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%-52s %6zu cases, %zu wrong, %.1f s\n", check.name, counts.cases, counts.wrong,
              seconds.count());
  std::fflush(stdout);
  return counts;
}

int run_all(const Options& options) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("skipped: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "no device");
    return kSkipped;
  }
  Counts all;
  const std::vector<Check> checks = checks_beginning_with(options.only);
  for (const Check& check : checks) {
    const Counts counts = run_check(check, options);
    all.cases += counts.cases;
    all.wrong += counts.wrong;
  }
  std::printf("%zu checks, seeds %llu..%llu: %zu cases, %zu wrong\n", checks.size(),
              static_cast<unsigned long long>(options.first_seed),
              static_cast<unsigned long long>(options.last_seed), all.cases, all.wrong);
  return all.wrong == 0 && all.cases > 0 ? 0 : 1;
}

// What an element is, apart from the code under test.
std::size_t width_of(Kind kind) { return kernels::width_bytes(kind); }

std::uint32_t get(Kind kind, const Bytes& block, std::size_t index) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, block.data() + index * width_of(kind), width_of(kind));
  return bits;
}

void set(Kind kind, Bytes& block, std::size_t index, std::uint32_t bits) {
  std::memcpy(block.data() + index * width_of(kind), &bits, width_of(kind));
}

/// Bits of a weight: the exponent falls off by about one a bit, the rest is random.
std::uint32_t real_bits(Kind kind, test::Random& rng) {
  const auto random = static_cast<std::uint32_t>(rng());
  const auto below = static_cast<std::uint32_t>(std::countl_zero(rng() | 1));
  switch (kind) {
    case Kind::u8:
      return 128 + random % 16 - random / 256 % 16;
    case Kind::bf16:
      return (random & 0x807F) | (122 - std::min(below, 40U)) << 7;
    case Kind::f16:
      return (random & 0x83FF) | (12 - std::min(below, 12U)) << 10;
    case Kind::f32:
      return (random & 0x807FFFFF) | (122 - std::min(below, 40U)) << 23;
    case Kind::f8_e4m3:
      return (random & 0x87) | (12 - std::min(below, 12U)) << 3;
    case Kind::f8_e5m2:
      return (random & 0x83) | (18 - std::min(below, 18U)) << 2;
  }
  return 0;
}

std::uint32_t stepped(std::uint32_t bits, Step step, test::Random& rng) {
  const auto random = static_cast<std::uint32_t>(rng());
  switch (step) {
    case Step::unit:
      return random % 2 == 0 ? bits + 1 : bits - 1;
    case Step::few:
      return bits + 1 + random % 9;
    case Step::any:
      break;
  }
  return random;
}

}  // namespace

Bytes make_block(Kind kind, std::size_t elements, Style style, test::Random& rng) {
  Bytes block(elements * width_of(kind));
  const std::uint32_t one_value = real_bits(kind, rng);
  for (std::size_t i = 0; i < elements; ++i) {
    set(kind, block, i,
        style == Style::random ? static_cast<std::uint32_t>(rng())
        : style == Style::real ? real_bits(kind, rng)
                               : one_value);
  }
  return block;
}

Bytes change_block(Kind kind, const Bytes& block, double share, Step step, test::Random& rng) {
  Bytes changed = block;
  std::bernoulli_distribution changes(share);
  for (std::size_t i = 0; i < block.size() / width_of(kind); ++i) {
    if (changes(rng)) set(kind, changed, i, stepped(get(kind, block, i), step, rng));
  }
  return changed;
}

Bytes damage(const Bytes& coded, test::Random& rng) {
  Bytes damaged = coded;
  const std::size_t times = 1 + rng() % 3;
  for (std::size_t i = 0; i < times && !damaged.empty(); ++i) {
    // Half of the time the header, where most of the rules are.
    const std::size_t range =
        rng() % 2 == 0 ? std::min<std::size_t>(damaged.size(), 24) : damaged.size();
    const std::size_t at = rng() % range;
    switch (rng() % 6) {
      case 0:
      case 1:
        damaged[at] = static_cast<std::uint8_t>(damaged[at] ^ 1U << rng() % 8);
        break;
      case 2:
        damaged[at] = static_cast<std::uint8_t>(rng() % 3 == 0 ? 0 : rng() % 2 == 0 ? 255 : rng());
        break;
      case 3:
        damaged.resize(at);
        break;
      case 4:
        damaged.push_back(static_cast<std::uint8_t>(rng() % 2 == 0 ? 0 : rng()));
        break;
      case 5:
        std::swap(damaged[at], damaged[rng() % damaged.size()]);
        break;
    }
  }
  return damaged;
}

std::size_t any_size(Run& run) {
  constexpr std::array kEdges = {1, 2, 7, 8, 9, 31, 33, 127, 129, 257, 1000, 4095, 4097};
  if (run.random(2) == 0) return static_cast<std::size_t>(kEdges.at(run.random(kEdges.size())));
  return 1 + run.random(run.is_quick() ? 3000 : 9000);
}

double any_share(Run& run) {
  constexpr std::array kShares = {0.0005, 0.01, 0.05, 0.3, 0.7, 0.97, 1.0};
  return kShares.at(run.random(kShares.size()));
}

std::string describe(Kind kind, std::size_t elements) {
  constexpr std::array<const char*, 6> kNames = {"u8", "bf16", "f16", "f32", "f8_e4m3", "f8_e5m2"};
  return std::string(kNames.at(static_cast<std::size_t>(kind))) + ", " + std::to_string(elements) +
         " elements";
}

}  // namespace weightfs::cuda_check

int main(int argc, char** argv) {
  using namespace weightfs::cuda_check;
  const auto options = parse(std::span<char* const>(argv + 1, static_cast<std::size_t>(argc - 1)));
  if (!options) {
    std::fputs("usage: cuda_check [--seeds A..B] [--quick] [--only TEXT] [--data FOLDER]\n",
               stderr);
    return 2;
  }
  return run_all(*options);
}
