// Codec: diff + encode, decode + apply and hash as ratios to memcpy, on weights that change as in
// training.
//
//     weightfs_codec_bench [--mib N] [--variants] [--only ROW]
//
// Prints Markdown.  What makes a ratio independent of the machine and of what else runs on it:
//   * All memory was used before: a guest's first use of a page is ten times slower.
//   * All operations alternate, slice by slice, in one process, each at another place of the
//     weights, so that none finds in the cache what another has left there.
//   * Only the processor time of the thread counts.
//   * Both the ratio of the best rounds and the median of the ratios of all rounds are given.
// The weights lie in huge pages: with small ones the ratios measure page walks.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kernels/block/ordered.hpp"
#include "kernels/dispatch/decode.hpp"
#include "kernels/dispatch/encode.hpp"
#include "kernels/dispatch/hash.hpp"
#include "kernels/dispatch/variant_table.hpp"

namespace weightfs::kernels {
namespace {

constexpr int kRounds = 9;
constexpr std::size_t kSlices = 16;

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

using Memory = std::vector<std::byte, HugePages<std::byte>>;

/// Splitmix64: the data need not be good, but there is much of it.
class Random {
 public:
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  /// Below 1.
  double next_share() noexcept { return std::ldexp(static_cast<double>(next() >> 32), -32); }

 private:
  std::uint64_t state_ = 1;
};

// ---- weights that change ----

/// Rounds towards zero; f8_e4m3 has a bias of 7, and 448 as its largest number.
std::uint32_t to_e4m3(float value) {
  const float size = std::min(std::abs(value), 448.0F);
  const std::uint32_t sign = value < 0 ? 0x80 : 0;
  if (size < 0x1p-6F) return sign | static_cast<std::uint32_t>(size * 0x1p9F);
  const auto bits = std::bit_cast<std::uint32_t>(size);
  return sign | ((bits >> 20) - ((127 - 7) << 3));
}

/// The bits of a number as an element of this kind.
std::uint32_t bits_as(Kind kind, float value) {
  if (kind == Kind::f8_e4m3) return to_e4m3(value);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return kind == Kind::bf16 ? bits >> 16 : bits;
}

constexpr std::size_t kTable = 1 << 16;

/// Normally distributed numbers.
const std::vector<float>& normal_table() {
  static const std::vector<float> kNormal = [] {
    std::mt19937_64 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> table(kTable);
    for (float& value : table) value = normal(rng);
    return table;
  }();
  return kNormal;
}

/// Weights of one kind, before and after a step of training.
struct Weights {
  Kind kind = Kind::bf16;
  Memory before, after, decoded;

  [[nodiscard]] std::size_t elements() const noexcept { return before.size() / width_bytes(kind); }
};

/// sigma 0.02; of an fp8 tensor, with the scale that make_run.py takes, 20.
template <typename Element>
void fill(Weights& weights, Random& random) {
  using Bits = typename Element::Bits;
  const unsigned mantissa = (1U << exponent_field(weights.kind).shift) - 1;
  const float sigma = weights.kind == Kind::f8_e4m3 ? 20.0F : 0.02F;
  for (std::size_t i = 0; i < weights.elements(); ++i) {
    // The mantissa is drawn apart, so that the table may be small.
    const std::uint64_t draw = random.next();
    const std::uint32_t bits = bits_as(weights.kind, sigma * normal_table()[draw % kTable]);
    const auto other = static_cast<std::uint32_t>(draw >> 32);
    store(weights.before.data() + i * sizeof(Bits),
          static_cast<Bits>((bits & ~mantissa) | (other & mantissa)));
  }
}

/// Standard deviation of the update in units of the last place, by exponent: the same number for
/// all weights, so it halves from one exponent to the next.
using Updates = std::array<double, 256>;

Updates make_updates(Kind kind, double scale) {
  Updates updates;
  const int bias = kind == Kind::f8_e4m3 ? 7 : 127;
  for (int e = 0; e < 256; ++e) {
    updates.at(static_cast<std::size_t>(e)) = std::ldexp(scale, bias - std::max(e, 1));
  }
  return updates;
}

/// How far a weight moves: by the update, rounded up or down at random.
std::uint32_t draw_units(double update, Random& random) {
  const double size = std::abs(normal_table()[random.next() % kTable]) * update;
  return static_cast<std::uint32_t>(std::min(size + random.next_share(), 0x1p20));
}

template <typename Element>
double density_of(const Weights& weights, const Updates& updates) {
  using Bits = typename Element::Bits;
  constexpr std::size_t kSample = 1 << 17;
  const ExponentField field = exponent_field(weights.kind);
  Random random;
  std::size_t changed = 0;
  for (std::size_t i = 0; i < kSample; ++i) {
    const auto bits = load<Bits>(weights.before.data() + i * sizeof(Bits));
    changed += draw_units(updates.at(field.of(bits)), random) > 0;
  }
  return static_cast<double>(changed) / kSample;
}

/// All change: by hundreds of units, as those of f32 do at a learning rate of 1e-6.
template <typename Element>
Updates updates_of_density(const Weights& weights, double density) {
  if (density >= 1) return make_updates(weights.kind, 8);
  double low = 0;
  double high = 1;
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(std::max(low, 1e-12) * high);
    const bool is_low = density_of<Element>(weights, make_updates(weights.kind, middle)) < density;
    (is_low ? low : high) = middle;
  }
  return make_updates(weights.kind, high);
}

template <typename Element>
void update(Weights& weights, const Updates& updates, Random& random) {
  using Bits = typename Element::Bits;
  const ExponentField field = exponent_field(weights.kind);
  for (std::size_t i = 0; i < weights.elements(); ++i) {
    const std::size_t at = i * sizeof(Bits);
    const auto bits = load<Bits>(weights.before.data() + at);
    const std::uint32_t units = draw_units(updates.at(field.of(bits)), random);
    const bool shrinks = (random.next() & 1) != 0;
    store(weights.after.data() + at, Element::moved(bits, negate_if(shrinks, units)));
  }
}

/// Counts pairs of exponent and difference.
class Bound {
 public:
  void add(unsigned exponent, std::int32_t difference) {
    constexpr std::int32_t kNear = 1 << 12;
    if (difference >= -kNear && difference < kNear) {
      auto& counts = near_.at(exponent);
      if (counts.empty()) counts.resize(2 * kNear);
      ++counts[static_cast<std::size_t>(difference + kNear)];
    } else {
      const auto low = static_cast<std::uint32_t>(difference);
      ++far_[std::uint64_t{exponent} << 32 | low];
    }
    ++elements_.at(exponent);
  }

  /// The order-0 entropy, given the exponent of the old element, of which elements change and by
  /// how much, in bits.
  [[nodiscard]] double bits() const {
    const auto term = [](std::uint64_t count) {
      return count == 0 ? 0.0 : static_cast<double>(count) * std::log2(static_cast<double>(count));
    };
    double sum = 0;
    for (const std::uint64_t count : elements_) sum += term(count);
    for (const auto& counts : near_) {
      for (const std::uint64_t count : counts) sum -= term(count);
    }
    for (const auto& [pair, count] : far_) sum -= term(count);
    return sum;
  }

 private:
  std::array<std::uint64_t, 256> elements_{};
  std::array<std::vector<std::uint64_t>, 256> near_;
  std::unordered_map<std::uint64_t, std::uint64_t> far_;
};

template <typename Element>
double bound_bits(const Weights& weights) {
  using Bits = typename Element::Bits;
  const ExponentField field = exponent_field(weights.kind);
  Bound bound;
  for (std::size_t at = 0; at < weights.before.size(); at += sizeof(Bits)) {
    const auto old_bits = load<Bits>(weights.before.data() + at);
    const auto new_bits = load<Bits>(weights.after.data() + at);
    bound.add(field.of(old_bits), Element::difference(old_bits, new_bits));
  }
  return bound.bits();
}

// ---- the operations ----

/// A part of the weights, whole chunks, and its coded form.
struct Slice {
  std::size_t begin = 0, size = 0;  // bytes
  std::size_t changed = 0;
  std::uint64_t hash = 0;
  std::vector<std::uint32_t> lengths{};
  std::vector<std::byte> coded{};

  template <typename Visit>
  void for_each(std::size_t bytes, Visit&& visit) const {
    for (std::size_t at = begin; at < begin + size; at += bytes) visit(at);
  }
};

std::vector<Slice> cut(const Memory& memory, std::size_t slices) {
  std::vector<Slice> all(slices);
  for (std::size_t i = 0; i < slices; ++i) {
    all[i].size = memory.size() / slices;
    all[i].begin = i * all[i].size;
  }
  return all;
}

/// Copies to where the slice is decoded, in blocks.
void copy(Weights& weights, Slice& slice, Scratch&) {
  slice.for_each(block_bytes(weights.kind), [&](std::size_t at) {
    std::memcpy(weights.decoded.data() + at, weights.before.data() + at, block_bytes(weights.kind));
  });
}

void hash(Weights& weights, Slice& slice, Scratch&) {
  slice.hash = 0;
  slice.for_each(chunk_bytes(weights.kind), [&](std::size_t at) {
    slice.hash ^= hash_chunk(ByteSpan(weights.after).subspan(at, chunk_bytes(weights.kind)));
  });
}

void diff(Weights& weights, Slice& slice, Scratch& scratch) {
  scratch.reset();
  Changes& changes = scratch.take_changes();
  const std::size_t bytes = block_bytes(weights.kind);
  slice.for_each(bytes, [&](std::size_t at) {
    chosen_variant().find_changes(weights.kind, ByteSpan(weights.before).subspan(at, bytes),
                                  ByteSpan(weights.after).subspan(at, bytes), changes);
  });
}

void encode(Weights& weights, Slice& slice, Scratch& scratch) {
  slice.changed = 0;
  slice.lengths.clear();
  slice.coded.clear();
  const std::size_t bytes = chunk_bytes(weights.kind);
  slice.for_each(bytes, [&](std::size_t at) {
    slice.changed += encode_chunk(weights.kind, ByteSpan(weights.before).subspan(at, bytes),
                                  ByteSpan(weights.after).subspan(at, bytes), scratch,
                                  slice.lengths, slice.coded);
  });
}

/// Decodes what encode() left.
void decode(Weights& weights, Slice& slice, Scratch& scratch) {
  std::span<const std::uint32_t> lengths(slice.lengths);
  ByteSpan coded(slice.coded);
  const std::size_t bytes = chunk_bytes(weights.kind);
  slice.for_each(bytes, [&](std::size_t at) {
    const auto own = lengths.first(kChunkBlocks);
    const std::size_t size = std::accumulate(own.begin(), own.end(), std::size_t{0});
    const auto chunk = std::span(weights.decoded).subspan(at, bytes);
    if (!decode_chunk(weights.kind, ByteSpan(weights.before).subspan(at, bytes), own,
                      coded.first(size), chunk, scratch)) {
      std::fprintf(stderr, "codec_bench: a chunk was refused\n");
      std::exit(EXIT_FAILURE);
    }
    lengths = lengths.subspan(kChunkBlocks);
    coded = coded.subspan(size);
  });
}

// ---- measuring ----

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

using Operation = void (*)(Weights&, Slice&, Scratch&);

/// An operation of one variant, and how long each round of it took.
struct Timed {
  Operation operation;
  std::string_view variant{};
  std::vector<double> seconds{};
};

double best(const Timed& timed) {
  return *std::min_element(timed.seconds.begin(), timed.seconds.end());
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// "best, median" of how often `copied` fits into `timed`.
std::string ratio(const Timed& copied, const Timed& timed) {
  std::vector<double> ratios(timed.seconds.size());
  std::transform(copied.seconds.begin(), copied.seconds.end(), timed.seconds.begin(),
                 ratios.begin(), std::divides<>());
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.2f, %.2f", best(copied) / best(timed),
                median(std::move(ratios)));
  return text.data();
}

/// Runs all operations on all slices, alternating.  Those of one step work on slices that are far
/// from each other.
void measure(Weights& weights, std::vector<Slice>& slices, std::vector<Timed>& all) {
  Scratch scratch;
  for (int round = 0; round < kRounds; ++round) {
    for (Timed& timed : all) timed.seconds.push_back(0);
    for (std::size_t step = 0; step < slices.size(); ++step) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        Slice& slice = slices[(step + i * slices.size() / all.size()) % slices.size()];
        if (!choose_variant(all[i].variant)) std::abort();
        const double begin = processor_seconds();
        all[i].operation(weights, slice, scratch);
        all[i].seconds.back() += processor_seconds() - begin;
      }
    }
  }
}

struct Case {
  Kind kind;
  const char* name;
  double density;
};

Weights make_case(const Case& of, std::size_t bytes) {
  Weights weights{of.kind, Memory(bytes), Memory(bytes), Memory(bytes)};
  Random random;
  with_element(of.kind, [&]<typename Element>(Element) {
    fill<Element>(weights, random);
    update<Element>(weights, updates_of_density<Element>(weights, of.density), random);
  });
  return weights;
}

/// Fills the coded forms, grows what has to grow, and checks that the weights come back.
void warm_up(Weights& weights, std::vector<Slice>& slices) {
  Scratch scratch;
  for (Slice& slice : slices) {
    encode(weights, slice, scratch);
    decode(weights, slice, scratch);
  }
  if (weights.decoded == weights.after) return;
  std::fprintf(stderr, "codec_bench: the weights did not come back as they were\n");
  std::exit(EXIT_FAILURE);
}

void print_size(const Weights& weights, const std::vector<Slice>& slices) {
  std::size_t changed = 0, coded = 0;
  for (const Slice& slice : slices) {
    changed += slice.changed;
    coded += slice.coded.size();
  }
  const double bound = with_element(
      weights.kind, [&]<typename Element>(Element) { return bound_bits<Element>(weights); });
  std::printf(" %.2f | %.3f |", 8.0 * static_cast<double>(coded) / static_cast<double>(changed),
              8.0 * static_cast<double>(coded) / bound);
}

void bench_case(const Case& of, std::size_t bytes) {
  Weights weights = make_case(of, bytes);
  std::vector<Slice> slices = cut(weights.before, kSlices);
  warm_up(weights, slices);
  const std::string_view name = variants().back().name;
  std::vector<Timed> all = {
      {copy, name}, {hash, name}, {diff, name}, {encode, name}, {decode, name}};
  measure(weights, slices, all);
  std::printf("| %s | %.5g %% | %.1f |", of.name, 100 * of.density,
              static_cast<double>(bytes) / best(all[0]) / 1e9);
  for (std::size_t i = 1; i < all.size(); ++i) std::printf(" %s |", ratio(all[0], all[i]).c_str());
  print_size(weights, slices);
  std::printf("\n");
  std::fflush(stdout);
}

/// Every variant, bf16.
void bench_variants(double density, std::size_t bytes) {
  Weights weights = make_case({Kind::bf16, "bf16", density}, bytes);
  std::vector<Slice> slices = cut(weights.before, kSlices);
  std::vector<Timed> all = {{copy, variants().back().name}};
  for (const Variant& variant : variants()) {
    if (!choose_variant(variant.name)) std::abort();
    warm_up(weights, slices);
    for (const Operation operation : {diff, encode, decode})
      all.push_back({operation, variant.name});
  }
  measure(weights, slices, all);
  for (std::size_t i = 1; i < all.size(); i += 3) {
    std::printf("| %s | %.5g %% |", std::string(all[i].variant).c_str(), 100 * density);
    for (std::size_t k = i; k < i + 3; ++k) std::printf(" %s |", ratio(all[0], all[k]).c_str());
    std::printf("\n");
  }
  std::fflush(stdout);
}

/// How much faster two threads are than one, each on half of the weights.
void bench_threads(std::size_t bytes) {
  Weights weights = make_case({Kind::bf16, "bf16", 0.012}, bytes);
  std::vector<Slice> slices = cut(weights.before, 2);
  warm_up(weights, slices);
  std::array<Scratch, 2> scratches;
  const auto seconds = [](auto&& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto compare = [&](const char* name, Operation operation) {
    Timed alone{operation}, both{operation};
    const auto work = [&](std::size_t i) { operation(weights, slices[i], scratches[i]); };
    for (int round = 0; round < kRounds; ++round) {
      alone.seconds.push_back(seconds([&] { work(0), work(1); }));
      both.seconds.push_back(seconds([&] {
        const std::jthread other([&] { work(1); });
        work(0);
      }));
    }
    std::printf("| %s | %s |\n", name, ratio(alone, both).c_str());
  };
  std::printf("\n| bf16, 1.2 %% changed | two threads / one thread: best, median |\n|---|---|\n");
  compare("memcpy", copy);
  compare("diff + encode", encode);
  compare("decode + apply", decode);
}

constexpr std::array kCases = {
    Case{Kind::bf16, "bf16", 0.001},       Case{Kind::bf16, "bf16", 0.012},
    Case{Kind::bf16, "bf16", 0.05},        Case{Kind::bf16, "bf16", 0.5},
    Case{Kind::f32, "f32", 0.012},         Case{Kind::f32, "f32", 1},
    Case{Kind::f8_e4m3, "f8_e4m3", 0.001}, Case{Kind::f8_e4m3, "f8_e4m3", 0.012}};

/// What the command line asks for.
struct Arguments {
  std::size_t mib = 256;
  bool has_variants = false;
  std::size_t first = 0, end = kCases.size();  // rows
};

int run(std::size_t bytes, const Arguments& arguments) {
  std::printf("%zu MiB, one thread, variant %s; x memcpy: best, median of %d rounds\n\n",
              bytes >> 20, std::string(variants().back().name).c_str(), kRounds);
  std::printf(
      "| kind | changed | memcpy, GB/s | hash | diff | diff + encode | decode + apply | "
      "bits per change | to the bound |\n|---|---|---|---|---|---|---|---|---|\n");
  for (std::size_t i = arguments.first; i < arguments.end; ++i) bench_case(kCases.at(i), bytes);
  if (arguments.end - arguments.first == 1) return EXIT_SUCCESS;
  if (arguments.has_variants) {
    std::printf(
        "\n| variant | changed | diff | diff + encode | decode + apply |\n"
        "|---|---|---|---|---|\n");
    for (const double density : {0.012, 0.5}) bench_variants(density, bytes);
  }
  bench_threads(bytes);
  return EXIT_SUCCESS;
}

std::size_t number(const char* text) { return std::strtoull(text, nullptr, 10); }

int main_of(std::span<char*> words) {
  Arguments arguments;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--variants") {
      arguments.has_variants = true;
    } else if (word == "--mib" && i + 1 < words.size()) {
      arguments.mib = number(words[++i]);
    } else if (word == "--only" && i + 1 < words.size()) {
      arguments.first = std::min(number(words[++i]), kCases.size() - 1);
      arguments.end = arguments.first + 1;
    } else {
      std::fprintf(stderr, "usage: weightfs_codec_bench [--mib N] [--variants] [--only ROW]\n");
      return EXIT_FAILURE;
    }
  }
  // Whole chunks of the widest kind in every slice.
  const std::size_t step = kSlices * kChunkBytesMax;
  return run(std::max(arguments.mib << 20, step) / step * step, arguments);
}

}  // namespace
}  // namespace weightfs::kernels

int main(int argc, char** argv) {
  return weightfs::kernels::main_of({argv, static_cast<std::size_t>(argc)});
}
