// Codec: hash, encode and decode as ratios to memcpy, on bf16 weights that change as in training.
//
// Prints Markdown.  A ratio compares the best rounds of one run, so tables of two machines, or of a
// busy one, can be compared; GB/s count one buffer and are there for orientation only.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/decode.hpp"
#include "kernels/encode.hpp"
#include "kernels/hash.hpp"

namespace weightfs::kernels {
namespace {

using Weights = std::vector<std::uint16_t>;

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

/// The coded form of all weights, and what it cost.
struct Coded {
  std::size_t changed = 0;
  std::vector<std::uint32_t> lengths;
  std::vector<std::byte> bytes;
};

template <typename Visit>
void for_each_chunk(Visit&& visit) {
  for (std::size_t at = 0; at < kElements; at += kChunkElements) visit(at);
}

std::span<const std::byte> chunk_of(const Weights& weights, std::size_t at) {
  return std::as_bytes(std::span(weights).subspan(at, kChunkElements));
}

void copy(const Weights& from, Weights& to) {
  for (std::size_t at = 0; at < kElements; at += kBlockElements) {
    std::memcpy(to.data() + at, from.data() + at, block_bytes(Kind::bf16));
  }
}

std::uint64_t hash(const Weights& weights) {
  std::uint64_t all = 0;
  for_each_chunk([&](std::size_t at) { all ^= hash_chunk(chunk_of(weights, at)); });
  return all;
}

void encode(const Weights& from, const Weights& to, Scratch& scratch, Coded& coded) {
  coded.changed = 0;
  coded.lengths.clear();
  coded.bytes.clear();
  for_each_chunk([&](std::size_t at) {
    coded.changed += encode_chunk(Kind::bf16, chunk_of(from, at), chunk_of(to, at), scratch,
                                  coded.lengths, coded.bytes);
  });
}

bool decode(const Weights& from, const Coded& coded, Scratch& scratch, Weights& to) {
  std::span<const std::uint32_t> lengths(coded.lengths);
  std::span<const std::byte> bytes(coded.bytes);
  bool is_good = true;
  for_each_chunk([&](std::size_t at) {
    const std::span<const std::uint32_t> own = lengths.first(kChunkBlocks);
    std::size_t size = 0;
    for (const std::uint32_t length : own) size += length;
    is_good =
        is_good &&
        decode_chunk(Kind::bf16, chunk_of(from, at), own, bytes.first(size),
                     std::as_writable_bytes(std::span(to).subspan(at, kChunkElements)), scratch);
    lengths = lengths.subspan(kChunkBlocks);
    bytes = bytes.subspan(size);
  });
  return is_good;
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

/// Returns: false if the weights did not come back.
bool bench_density(const Weights& before, double density, Random& random, Weights& after,
                   Weights& decoded) {
  update(before, updates_of_density(before, density), random, after);
  Scratch scratch;
  Coded coded;
  encode(before, after, scratch, coded);  // the vectors grow outside the measurement
  Best copied, hashed, encoded, decoded_best;
  std::uint64_t sum = 0;
  bool is_good = true;
  for (int round = 0; round < kRounds; ++round) {
    copied.run([&] { copy(before, decoded); });
    hashed.run([&] { sum += hash(after); });
    encoded.run([&] { encode(before, after, scratch, coded); });
    decoded_best.run([&] { is_good = decode(before, coded, scratch, decoded) && is_good; });
  }
  is_good = is_good && decoded == after && sum == kRounds * hash(decoded);

  char changed[32];
  char bits[32] = "";
  std::snprintf(changed, sizeof changed, "%.2f %%",
                100 * static_cast<double>(coded.changed) / static_cast<double>(kElements));
  if (coded.changed > 0) {
    std::snprintf(bits, sizeof bits, "%.2f",
                  8 * static_cast<double>(coded.bytes.size()) / static_cast<double>(coded.changed));
  }
  print_row("hash_chunk", changed, hashed, copied, "");
  print_row("encode_chunk", changed, encoded, copied, bits);
  print_row("decode_chunk", changed, decoded_best, copied, bits);
  std::fflush(stdout);
  return is_good;
}

int run() {
  Random random;
  const Weights before = make_weights(random);
  Weights after(kElements);
  Weights decoded(kElements);
  std::printf("bf16, %zu MiB, one thread, best of %d rounds\n\n", kElements * 2 >> 20, kRounds);
  std::printf("| kernel | changed | GB/s | x memcpy | bits per change |\n|---|---|---|---|---|\n");
  for (const double density : {0.0, 0.0036, 0.012, 0.034, 0.5}) {
    if (!bench_density(before, density, random, after, decoded)) {
      std::fprintf(stderr, "codec_bench: the weights did not come back as they were\n");
      return EXIT_FAILURE;
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace weightfs::kernels

int main() { return weightfs::kernels::run(); }
