#include "tests/fuzz/fuzz.hpp"

#include <algorithm>
#include <cstring>

namespace weightfs::fuzz {
namespace {

/// Splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

enum class Pattern : std::uint8_t { any, narrow, constant };

/// Bits with few different exponents: each is one of sixteen neighbours.
std::uint64_t narrow_bits(std::size_t width, std::uint64_t random) {
  const std::uint64_t low_bits = width == 1 ? random & 0xBF : random;
  if (width == 1) return low_bits;
  const std::uint64_t top = 0x3800 + (random >> 40 & 0x07FF);
  return width == 2 ? top | (random & 0x8000) : top << 16 | (random & 0x8000'FFFF);
}

void fill(Pattern pattern, std::size_t width, std::uint64_t seed, Bytes& bytes) {
  Random random(seed);
  const std::uint64_t constant = random.next();
  for (std::size_t at = 0; at + width <= bytes.size(); at += width) {
    const std::uint64_t draw = pattern == Pattern::constant ? constant : random.next();
    const std::uint64_t bits = pattern == Pattern::narrow ? narrow_bits(width, draw) : draw;
    std::memcpy(bytes.data() + at, &bits, width);
  }
}

/// Fewer than 4,096 elements, or in one case of sixteen almost a full block: small inputs are many
/// times faster, and find most.
std::size_t element_count(unsigned code) {
  const std::size_t low = code % 4096;
  return code / 4096 == 15 ? kernels::kBlockElements - low : low;
}

/// How often an element changes, of 2^16: from once in a block to always.
std::uint64_t chance(std::uint8_t density) {
  return density >= 240 ? 65536 : std::uint64_t{1} << density / 15;
}

std::uint32_t changed(std::uint32_t bits, std::uint8_t how, std::uint64_t random) {
  const auto draw = static_cast<std::uint32_t>(random);
  switch (how % 4) {
    case 0:
      return bits + (draw % 2 == 0 ? 1U : ~0U);
    case 1:
      return bits + 1 + draw % 9;
    case 2:
      return bits + (draw >> (random >> 32) % 32);
    default:
      return ~bits;
  }
}

}  // namespace

std::uint8_t Input::u8() {
  if (rest_.empty()) return 0;
  const auto value = static_cast<std::uint8_t>(rest_.front());
  rest_ = rest_.subspan(1);
  return value;
}

std::uint16_t Input::u16() {
  const unsigned low = u8();
  return static_cast<std::uint16_t>(low | static_cast<unsigned>(u8()) << 8);
}

Bytes Input::bytes(std::size_t count) {
  const auto taken = rest_.first(std::min(count, rest_.size()));
  rest_ = rest_.subspan(taken.size());
  return {taken.begin(), taken.end()};
}

Block take_block(Input& input) {
  Block block;
  block.kind = static_cast<kernels::Kind>(input.u8() % 6);
  block.elements = element_count(input.u16());
  const std::size_t width = kernels::width_bytes(block.kind);
  block.bytes.resize(block.elements * width);
  const auto pattern = static_cast<Pattern>(input.u8() % 3);
  fill(pattern, width, input.u8(), block.bytes);
  const Bytes first = input.bytes(input.u16());
  std::copy_n(first.begin(), std::min(first.size(), block.bytes.size()), block.bytes.begin());
  return block;
}

Bytes take_changed(Input& input, const Block& block) {
  Bytes bytes = block.bytes;
  const std::uint64_t limit = chance(input.u8());
  const std::uint8_t how = input.u8();
  Random random(input.u8());
  const std::size_t width = kernels::width_bytes(block.kind);
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    const std::uint64_t draw = random.next();
    if ((draw & 0xFFFF) >= limit) continue;
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, width);
    bits = changed(bits, how, draw >> 16);
    std::memcpy(bytes.data() + at, &bits, width);
  }
  return bytes;
}

void take_damage(Input& input, Bytes& coded) {
  for (unsigned left = input.u8() % 8; left > 0 && !coded.empty(); --left) {
    const std::size_t at = input.u16();
    coded[at % coded.size()] ^= static_cast<std::byte>(input.u8());
  }
  const std::uint8_t cut = input.u8();
  if (cut % 4 == 1) coded.resize(coded.size() - std::min<std::size_t>(cut / 4, coded.size()));
  if (cut % 4 == 2) coded.resize(coded.size() + cut / 4);
  coded.shrink_to_fit();
}

}  // namespace weightfs::fuzz
