// Blocks: elements for the tests of the codec, made without the code under test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/scratch.hpp"
#include "store/base/bytes.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {

inline constexpr std::array kKinds = {kernels::Kind::u8,      kernels::Kind::bf16,
                                      kernels::Kind::f16,     kernels::Kind::f32,
                                      kernels::Kind::f8_e4m3, kernels::Kind::f8_e5m2};

/// One for all tests: they run one at a time.
inline kernels::Scratch& scratch() {
  static kernels::Scratch scratch;
  return scratch;
}

inline std::string kind_name(const testing::TestParamInfo<kernels::Kind>& kind) {
  constexpr std::array<const char*, kKinds.size()> kNames = {"u8",  "bf16",    "f16",
                                                             "f32", "f8_e4m3", "f8_e5m2"};
  return kNames.at(static_cast<std::size_t>(kind.param));
}

inline std::uint32_t get_element(kernels::Kind kind, const Bytes& bytes, std::size_t index) {
  const std::size_t width = kernels::width_bytes(kind);
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes.data() + index * width, width);
  return bits;
}

inline void set_element(kernels::Kind kind, Bytes& bytes, std::size_t index, std::uint32_t bits) {
  const std::size_t width = kernels::width_bytes(kind);
  std::memcpy(bytes.data() + index * width, &bits, width);
}

/// Bits in every combination, so infinities, NaNs, zeros and both signs are among them.
inline Bytes random_elements(kernels::Kind kind, std::size_t elements, Random& rng) {
  Bytes bytes(elements * kernels::width_bytes(kind));
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = rng();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
  return bytes;
}

/// How an element is changed.
enum class Step { unit, few, any };

inline std::uint32_t step(std::uint32_t bits, Step how, Random& rng) {
  const std::uint64_t random = rng();
  switch (how) {
    case Step::unit:
      return random % 2 == 0 ? bits + 1 : bits - 1;
    case Step::few:
      return bits + static_cast<std::uint32_t>(1 + random % 9);
    case Step::any:
      break;
  }
  return static_cast<std::uint32_t>(random);
}

/// A copy with about `share` of the elements changed, or exactly one for a share of 0.
inline Bytes changed_elements(kernels::Kind kind, const Bytes& old, double share, Step how,
                              Random& rng) {
  Bytes bytes = old;
  const std::size_t elements = old.size() / kernels::width_bytes(kind);
  if (elements == 0) return bytes;
  if (share == 0) {
    const std::size_t index = rng() % elements;
    set_element(kind, bytes, index, get_element(kind, old, index) + 1);
    return bytes;
  }
  std::geometric_distribution<std::size_t> gap(share);
  for (std::size_t i = share < 1 ? gap(rng) : 0; i < elements; i += share < 1 ? 1 + gap(rng) : 1) {
    set_element(kind, bytes, i, step(get_element(kind, old, i), how, rng));
  }
  return bytes;
}

inline std::size_t count_changed(kernels::Kind kind, const Bytes& a, const Bytes& b) {
  std::size_t changed = 0;
  for (std::size_t i = 0; i < a.size() / kernels::width_bytes(kind); ++i) {
    changed += get_element(kind, a, i) != get_element(kind, b, i);
  }
  return changed;
}

/// A test of every kind.
class KindTest : public testing::TestWithParam<kernels::Kind> {
 protected:
  [[nodiscard]] Bytes random(std::size_t elements) {
    return random_elements(GetParam(), elements, rng_);
  }
  [[nodiscard]] Bytes changed(const Bytes& old, double share, Step how) {
    return changed_elements(GetParam(), old, share, how, rng_);
  }
  /// A copy with these bits turned over in every element.
  [[nodiscard]] static Bytes flipped(const Bytes& old, std::uint32_t mask) {
    Bytes bytes = old;
    for (std::size_t i = 0; i < old.size() / kernels::width_bytes(GetParam()); ++i) {
      set_element(GetParam(), bytes, i, get_element(GetParam(), old, i) ^ mask);
    }
    return bytes;
  }
  [[nodiscard]] static std::uint32_t sign() {
    return 1U << (8 * kernels::width_bytes(GetParam()) - 1);
  }
  /// Zeros, the smallest and the largest numbers of both signs, infinities and the NaNs beside them
  /// for any place of the exponent.
  [[nodiscard]] static std::vector<std::uint32_t> specials() {
    const std::uint32_t all = 2 * sign() - 1;
    std::vector<std::uint32_t> values = {0, 1, sign() - 1, sign(), sign() + 1, all, all - 1};
    for (unsigned bit = 1; bit + 1 < 8 * kernels::width_bytes(GetParam()); ++bit) {
      const std::uint32_t exponent = (sign() - 1) & ~((1U << bit) - 1);
      values.insert(values.end(), {exponent, exponent + 1, exponent | sign()});
    }
    return values;
  }

  Random rng_ = make_rng();
};

}  // namespace weightfs::test
