// Codec: hash, diff, encode and decode as ratios to memcpy, on bf16 weights that change as in
// training.
//
// Prints Markdown.  A ratio compares the best rounds of one run, so tables of two machines, or of a
// busy one, can be compared; GB/s count one buffer and are there for orientation only.  The weights
// lie in huge pages: with small ones the ratios measure page walks.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/dispatch/decode.hpp"
#include "kernels/dispatch/encode.hpp"
#include "kernels/dispatch/hash.hpp"
#include "kernels/dispatch/variant_table.hpp"

namespace weightfs::kernels {
namespace {

/// Memory in huge pages, where the machine has them.
template <typename Value>
struct HugePages {
  using value_type = Value;
  Value* allocate(std::size_t count) {
    void* const at = mmap(nullptr, count * sizeof(Value), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    madvise(at, count * sizeof(Value), MADV_HUGEPAGE);
    return static_cast<Value*>(at);
  }
  void deallocate(Value* at, std::size_t count) noexcept { munmap(at, count * sizeof(Value)); }
  bool operator==(const HugePages&) const = default;
};

using Weights = std::vector<std::uint16_t, HugePages<std::uint16_t>>;

constexpr std::size_t kElements = std::size_t{128} << 20;  // 256 MiB: far beyond every cache
constexpr std::size_t kChunkElements = kBlockElements * kChunkBlocks;
constexpr int kRounds = 5;

/// Splitmix64: the data need not be good, but there is much of it.
class Random {
 public:
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_ = 1;
};

std::size_t exponent_of(std::uint16_t bits) { return bits >> 7 & 0xFF; }

/// Normally distributed, sigma 0.02, drawn from a table.
Weights make_weights(Random& random) {
  Weights table(1 << 16);
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  for (std::uint16_t& bits : table) {
    const float value = normal(rng);
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    bits = static_cast<std::uint16_t>(word >> 16);
  }
  Weights weights(kElements);
  for (std::uint16_t& bits : weights) {
    // The mantissa is drawn apart, so that the table may be small.
    const std::uint64_t draw = random.next();
    bits = static_cast<std::uint16_t>((table[draw & 0xFFFF] & 0xFF80) | (draw >> 20 & 0x7F));
  }
  return weights;
}

/// An update of equal size for all weights, in units of the last place of each exponent: it halves
/// from one exponent to the next.  Below one unit it is the chance that the weight changes at all.
using Updates = std::array<double, 256>;

Updates make_updates(double scale) {
  Updates updates;
  for (int e = 0; e < 256; ++e)
    updates.at(static_cast<std::size_t>(e)) = std::ldexp(scale, 127 - e);
  return updates;
}

double expected_density(const Weights& weights, const Updates& updates) {
  constexpr std::size_t kSample = 1 << 18;
  double changed = 0;
  for (std::size_t i = 0; i < kSample; ++i) {
    changed += std::min(1.0, updates.at(exponent_of(weights[i])));
  }
  return changed / kSample;
}

Updates updates_of_density(const Weights& weights, double density) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (expected_density(weights, make_updates(middle)) < density ? low : high) = middle;
  }
  return make_updates(density > 0 ? high : 0);
}

void update(const Weights& from, const Updates& updates, Random& random, Weights& to) {
  std::array<std::uint64_t, 256> thresholds{};
  std::array<std::uint64_t, 256> spreads{};
  for (std::size_t e = 0; e < 256; ++e) {
    thresholds.at(e) = static_cast<std::uint64_t>(std::ldexp(std::min(1.0, updates.at(e)), 32));
    spreads.at(e) = static_cast<std::uint64_t>(std::clamp(2 * updates.at(e) - 1, 1.0, 100.0));
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint64_t draw = random.next();
    const std::size_t e = exponent_of(from[i]);
    to[i] = from[i];
    if ((draw & 0xFFFF'FFFF) >= thresholds[e]) continue;
    const std::uint64_t units = 1 + (draw >> 40) % spreads[e];
    const bool shrinks = (draw >> 32 & 1) != 0 && (from[i] & 0x7FFF) > units;
    to[i] = static_cast<std::uint16_t>(shrinks ? from[i] - units : from[i] + units);
  }
}

/// What one thread works on, and what it needs.
struct Worker {
  std::size_t begin = 0, end = kElements;  // elements, whole chunks
  Scratch scratch{};
  std::unique_ptr<Changes> changes = std::make_unique<Changes>();

  // The coded form of its weights, and what that cost.
  std::size_t changed = 0;
  std::vector<std::uint32_t> lengths{};
  std::vector<std::byte> coded{};
};

template <typename Visit>
void for_each_chunk(const Worker& worker, Visit&& visit) {
  for (std::size_t at = worker.begin; at < worker.end; at += kChunkElements) visit(at);
}

std::span<const std::byte> chunk_of(const Weights& weights, std::size_t at) {
  return std::as_bytes(std::span(weights).subspan(at, kChunkElements));
}

void copy(Worker& worker, const Weights& from, Weights& to) {
  for (std::size_t at = worker.begin; at < worker.end; at += kBlockElements) {
    std::memcpy(to.data() + at, from.data() + at, block_bytes(Kind::bf16));
  }
}

std::uint64_t hash(Worker& worker, const Weights& weights) {
  std::uint64_t all = 0;
  for_each_chunk(worker, [&](std::size_t at) { all ^= hash_chunk(chunk_of(weights, at)); });
  return all;
}

void diff(Worker& worker, const Weights& from, const Weights& to) {
  worker.changed = 0;
  for (std::size_t at = worker.begin; at < worker.end; at += kBlockElements) {
    const auto block = [at](const Weights& weights) {
      return std::as_bytes(std::span(weights).subspan(at, kBlockElements));
    };
    chosen_variant().find_changes(Kind::bf16, block(from), block(to), *worker.changes);
    worker.changed += worker.changes->count;
  }
}

void encode(Worker& worker, const Weights& from, const Weights& to) {
  worker.changed = 0;
  worker.lengths.clear();
  worker.coded.clear();
  for_each_chunk(worker, [&](std::size_t at) {
    worker.changed += encode_chunk(Kind::bf16, chunk_of(from, at), chunk_of(to, at), worker.scratch,
                                   worker.lengths, worker.coded);
  });
}

/// Decodes what encode() left in `worker`.
void decode(Worker& worker, const Weights& from, Weights& to) {
  std::span<const std::uint32_t> lengths(worker.lengths);
  std::span<const std::byte> bytes(worker.coded);
  for_each_chunk(worker, [&](std::size_t at) {
    const std::span<const std::uint32_t> own = lengths.first(kChunkBlocks);
    std::size_t size = 0;
    for (const std::uint32_t length : own) size += length;
    const auto chunk = std::as_writable_bytes(std::span(to).subspan(at, kChunkElements));
    if (!decode_chunk(Kind::bf16, chunk_of(from, at), own, bytes.first(size), chunk,
                      worker.scratch)) {
      std::fprintf(stderr, "codec_bench: a chunk was refused\n");
      std::exit(EXIT_FAILURE);
    }
    lengths = lengths.subspan(kChunkBlocks);
    bytes = bytes.subspan(size);
  });
}

/// Shortest time of all rounds so far.
class Best {
 public:
  template <typename Body>
  void run(Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds_ = std::min(seconds_, took.count());
  }
  [[nodiscard]] double seconds() const noexcept { return seconds_; }

 private:
  double seconds_ = std::numeric_limits<double>::infinity();
};

void print_row(const char* kernel, const char* changed, const Best& best, const Best& memcpy_best,
               const char* bits) {
  std::printf("| %s | %s | %.1f | %.2f | %s |\n", kernel, changed,
              static_cast<double>(kElements * 2) / best.seconds() / 1e9,
              memcpy_best.seconds() / best.seconds(), bits);
}

/// Best rounds of one variant.
struct VariantBest {
  Best diff, encode, decode;
};

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

/// Returns: false if the weights did not come back.
bool bench_density(const Weights& before, const Weights& after, Weights& decoded) {
  Worker worker;
  encode(worker, before, after);  // the vectors grow outside the measurement
  Best copied, hashed;
  std::vector<VariantBest> bests(variants().size());
  bool is_good = true;
  std::uint64_t sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    copied.run([&] { copy(worker, before, decoded); });
    hashed.run([&] { sum = hash(worker, after); });
    for (std::size_t i = 0; i < variants().size(); ++i) {
      is_good = choose_variant(variants()[i].name) && is_good;
      bests[i].diff.run([&] { diff(worker, before, after); });
      bests[i].encode.run([&] { encode(worker, before, after); });
      bests[i].decode.run([&] { decode(worker, before, decoded); });
      is_good = decoded == after && is_good;
    }
  }
  is_good = is_good && sum == hash(worker, decoded);

  const auto changes = static_cast<double>(worker.changed);
  const std::string changed = percent(changes / static_cast<double>(kElements));
  char bits[32] = "";
  if (worker.changed > 0) {
    std::snprintf(bits, sizeof bits, "%.2f",
                  8 * static_cast<double>(worker.coded.size()) / changes);
  }
  print_row("hash_chunk", changed.c_str(), hashed, copied, "");
  const auto print_rows = [&](const char* kernel, Best VariantBest::*best, const char* cost) {
    for (std::size_t i = 0; i < bests.size(); ++i) {
      const std::string name = kernel + (", " + std::string(variants()[i].name));
      print_row(name.c_str(), changed.c_str(), bests[i].*best, copied, cost);
    }
  };
  print_rows("diff", &VariantBest::diff, "");
  print_rows("encode_chunk", &VariantBest::encode, bits);
  print_rows("decode_chunk", &VariantBest::decode, bits);
  std::fflush(stdout);
  return is_good;
}

/// Prints how much faster two threads are than one, each on half of the weights.
void bench_threads(const Weights& before, const Weights& after, Weights& decoded) {
  Worker whole;
  Worker first{.begin = 0, .end = kElements / 2};
  Worker second{.begin = kElements / 2, .end = kElements};
  std::printf("\n| kernel, the fastest variant | two threads / one thread |\n|---|---|\n");
  const auto compare = [&](const char* kernel, auto&& body) {
    Best alone, both;
    for (int round = 0; round < kRounds; ++round) {
      alone.run([&] { body(whole); });
      both.run([&] {
        const std::jthread other([&] { body(second); });
        body(first);
      });
    }
    std::printf("| %s | %.2f |\n", kernel, alone.seconds() / both.seconds());
  };
  compare("memcpy", [&](Worker& worker) { copy(worker, before, decoded); });
  compare("diff", [&](Worker& worker) { diff(worker, before, after); });
  compare("encode_chunk", [&](Worker& worker) { encode(worker, before, after); });
  compare("decode_chunk", [&](Worker& worker) { decode(worker, before, decoded); });
}

int run() {
  Random random;
  const Weights before = make_weights(random);
  Weights after(kElements);
  Weights decoded(kElements);
  std::printf("bf16, %zu MiB, one thread, best of %d rounds\n\n", kElements * 2 >> 20, kRounds);
  std::printf("| kernel | changed | GB/s | x memcpy | bits per change |\n|---|---|---|---|---|\n");
  for (const double density : {0.0, 0.0036, 0.034, 0.5, 0.012}) {
    update(before, updates_of_density(before, density), random, after);
    if (!bench_density(before, after, decoded)) {
      std::fprintf(stderr, "codec_bench: the weights did not come back as they were\n");
      return EXIT_FAILURE;
    }
  }
  bench_threads(before, after, decoded);  // at the last density
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace weightfs::kernels

int main() { return weightfs::kernels::run(); }
