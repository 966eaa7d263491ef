// XXH3: the 64-bit hash XXH3 with seed 0, for any length, written from its specification.
//
// An input of up to 240 bytes is hashed at once, by one of five rules.  A longer one is cut into
// stripes of 64 bytes, and these into blocks of 16 stripes:
//
//     stripes --add--> 8 accumulators --scramble after each block--> ... --last stripe--> merge
//
// Within a block the order of the stripes does not matter, since their contributions are summed.
// Between blocks it does.  The device (kernels/cuda/hash.cu) sums many blocks in parallel and
// scrambles in order.  It shares every step defined here; the host runs the steps sequentially.
//
// Numbers are little-endian; the input may have any alignment.
//
// Source: the specification of XXH3 (xxHash 0.8), and its constants.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block/host_device.hpp"

namespace weightfs::kernels::xxh3 {

inline constexpr std::uint64_t kPrime32A = 0x9E3779B1, kPrime32B = 0x85EBCA77,
                               kPrime32C = 0xC2B2AE3D;
inline constexpr std::uint64_t kPrime64A = 0x9E3779B185EBCA87, kPrime64B = 0xC2B2AE3D27D4EB4F,
                               kPrime64C = 0x165667B19E3779F9, kPrime64D = 0x85EBCA77C2B2AE63,
                               kPrime64E = 0x27D4EB2F165667C5;
inline constexpr std::uint64_t kPrimeMixA = 0x165667919E3779F9, kPrimeMixB = 0x9FB21C651E98DF25;

inline constexpr std::size_t kShortBytesMax = 240;
inline constexpr std::size_t kStripeBytes = 64;
inline constexpr std::size_t kBlockStripes = 16;
inline constexpr std::size_t kBlockBytes = kBlockStripes * kStripeBytes;
inline constexpr std::size_t kAccumulators = 8;

/// Offsets in the secret, in bytes, for each step; the stripes of a block advance by 8 each.
inline constexpr std::size_t kScrambleSecret = 128, kLastStripeSecret = 121, kMergeSecret = 11;

// Numbers --------------------------------------------------------------------------------------

template <typename Value>
WEIGHTFS_HOST_DEVICE inline Value read(const std::uint8_t* from) noexcept {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// 8 bytes of the secret, from byte `at` on.
WEIGHTFS_HOST_DEVICE inline std::uint64_t secret(std::size_t at) noexcept {
  static constexpr std::uint64_t kWords[] = {
      0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072,
      0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0,
      0xCB00C391BB52283C, 0xA32E531B8B65D088, 0x4EF90DA297486471, 0xD8ACDEA946EF1938,
      0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A, 0x647378D9C97E9FC8,
      0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
      0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF,
  };
  const auto shift = static_cast<unsigned>(at % 8 * 8);
  const std::uint64_t low = kWords[at / 8] >> shift;
  return shift == 0 ? low : low | kWords[at / 8 + 1] << (64 - shift);
}

WEIGHTFS_HOST_DEVICE inline std::uint64_t rotated(std::uint64_t x, unsigned bits) noexcept {
  return x << bits | x >> (64 - bits);
}

WEIGHTFS_HOST_DEVICE inline std::uint64_t reversed(std::uint64_t x) noexcept {
  x = (x & 0x00FF00FF00FF00FF) << 8 | (x >> 8 & 0x00FF00FF00FF00FF);
  x = (x & 0x0000FFFF0000FFFF) << 16 | (x >> 16 & 0x0000FFFF0000FFFF);
  return x << 32 | x >> 32;
}

/// The two halves of the 128-bit product, combined by xor.
WEIGHTFS_HOST_DEVICE inline std::uint64_t folded_product(std::uint64_t a,
                                                         std::uint64_t b) noexcept {
  constexpr std::uint64_t kLow = 0xFFFFFFFF;
  const std::uint64_t low = (a & kLow) * (b & kLow);
  const std::uint64_t cross_a = (a >> 32) * (b & kLow) + (low >> 32);
  const std::uint64_t cross_b = (a & kLow) * (b >> 32) + (cross_a & kLow);
  const std::uint64_t high = (a >> 32) * (b >> 32) + (cross_a >> 32) + (cross_b >> 32);
  return high ^ (cross_b << 32 | (low & kLow));
}

WEIGHTFS_HOST_DEVICE inline std::uint64_t avalanche(std::uint64_t h) noexcept {
  h = (h ^ h >> 37) * kPrimeMixA;
  return h ^ h >> 32;
}
/// The avalanche of the older XXH64, which the shortest inputs use.
WEIGHTFS_HOST_DEVICE inline std::uint64_t old_avalanche(std::uint64_t h) noexcept {
  h = (h ^ h >> 33) * kPrime64B;
  h = (h ^ h >> 29) * kPrime64C;
  return h ^ h >> 32;
}

// Short inputs ---------------------------------------------------------------------------------

WEIGHTFS_HOST_DEVICE inline std::uint64_t mixed(const std::uint8_t* from,
                                                std::size_t secret_at) noexcept {
  return folded_product(read<std::uint64_t>(from) ^ secret(secret_at),
                        read<std::uint64_t>(from + 8) ^ secret(secret_at + 8));
}

WEIGHTFS_HOST_DEVICE inline std::uint64_t hash_0_to_16(const std::uint8_t* in,
                                                       std::size_t size) noexcept {
  if (size == 0) return old_avalanche(secret(56) ^ secret(64));
  if (size < 4) {
    const std::uint32_t bytes = std::uint32_t{in[0]} << 16 | std::uint32_t{in[size / 2]} << 24 |
                                in[size - 1] | static_cast<std::uint32_t>(size) << 8;
    return old_avalanche(bytes ^ ((secret(0) ^ secret(4)) & 0xFFFFFFFF));
  }
  if (size <= 8) {
    const std::uint64_t ends =
        read<std::uint32_t>(in + size - 4) + (std::uint64_t{read<std::uint32_t>(in)} << 32);
    std::uint64_t h = ends ^ secret(8) ^ secret(16);
    h = (h ^ rotated(h, 49) ^ rotated(h, 24)) * kPrimeMixB;
    h = (h ^ ((h >> 35) + size)) * kPrimeMixB;
    return h ^ h >> 28;
  }
  const std::uint64_t low = read<std::uint64_t>(in) ^ secret(24) ^ secret(32);
  const std::uint64_t high = read<std::uint64_t>(in + size - 8) ^ secret(40) ^ secret(48);
  return avalanche(size + reversed(low) + high + folded_product(low, high));
}

WEIGHTFS_HOST_DEVICE inline std::uint64_t hash_17_to_128(const std::uint8_t* in,
                                                         std::size_t size) noexcept {
  std::uint64_t h = size * kPrime64A;
  for (std::size_t pair = (size - 1) / 32 + 1; pair-- > 0;) {
    h += mixed(in + 16 * pair, 32 * pair);
    h += mixed(in + size - 16 * (pair + 1), 32 * pair + 16);
  }
  return avalanche(h);
}

WEIGHTFS_HOST_DEVICE inline std::uint64_t hash_129_to_240(const std::uint8_t* in,
                                                          std::size_t size) noexcept {
  std::uint64_t h = size * kPrime64A;
  for (std::size_t i = 0; i < 8; ++i) h += mixed(in + 16 * i, 16 * i);
  h = avalanche(h);
  for (std::size_t i = 8; i < size / 16; ++i) h += mixed(in + 16 * i, 16 * (i - 8) + 3);
  return avalanche(h + mixed(in + size - 16, 119));
}

/// Requires: size <= kShortBytesMax.
WEIGHTFS_HOST_DEVICE inline std::uint64_t hash_short(const std::uint8_t* in,
                                                     std::size_t size) noexcept {
  if (size <= 16) return hash_0_to_16(in, size);
  return size <= 128 ? hash_17_to_128(in, size) : hash_129_to_240(in, size);
}

// Long inputs ----------------------------------------------------------------------------------

/// The initial value of accumulator i.
WEIGHTFS_HOST_DEVICE inline std::uint64_t first_accumulator(std::size_t i) noexcept {
  switch (i) {
    case 0:
      return kPrime32C;
    case 1:
      return kPrime64A;
    case 2:
      return kPrime64B;
    case 3:
      return kPrime64C;
    case 4:
      return kPrime64D;
    case 5:
      return kPrime32B;
    case 6:
      return kPrime64E;
    default:
      return kPrime32A;
  }
}

/// What a stripe adds to accumulator i: `own` is its word i, `neighbour` its word i ^ 1, and `key`
/// 8 bytes of the secret at the stripe's offset + 8 i.
WEIGHTFS_HOST_DEVICE inline std::uint64_t addend(std::uint64_t own, std::uint64_t neighbour,
                                                 std::uint64_t key) noexcept {
  const std::uint64_t keyed = own ^ key;
  return neighbour + (keyed & 0xFFFFFFFF) * (keyed >> 32);
}

/// Accumulator i after a block.
WEIGHTFS_HOST_DEVICE inline std::uint64_t scrambled(std::uint64_t accumulator,
                                                    std::size_t i) noexcept {
  return (accumulator ^ accumulator >> 47 ^ secret(kScrambleSecret + 8 * i)) * kPrime32A;
}

/// Whole blocks of an input of more than kShortBytesMax bytes.  The rest, which is never empty,
/// consists of left_stripes() and the last 64 bytes, which may overlap them.
WEIGHTFS_HOST_DEVICE inline std::size_t whole_blocks(std::size_t size) noexcept {
  return (size - 1) / kBlockBytes;
}
WEIGHTFS_HOST_DEVICE inline std::size_t left_stripes(std::size_t size) noexcept {
  return (size - 1) % kBlockBytes / kStripeBytes;
}

/// The contribution of the accumulators 2 pair and 2 pair + 1 to the hash.
WEIGHTFS_HOST_DEVICE inline std::uint64_t merged(std::uint64_t even, std::uint64_t odd,
                                                 std::size_t pair) noexcept {
  return folded_product(even ^ secret(kMergeSecret + 16 * pair),
                        odd ^ secret(kMergeSecret + 16 * pair + 8));
}
WEIGHTFS_HOST_DEVICE inline std::uint64_t finished(std::uint64_t merged_sum,
                                                   std::uint64_t size) noexcept {
  return avalanche(merged_sum + size * kPrime64A);
}

inline void accumulate(std::uint64_t (&accumulators)[kAccumulators], const std::uint8_t* stripe,
                       std::size_t secret_at) noexcept {
  for (std::size_t i = 0; i < kAccumulators; ++i) {
    accumulators[i] += addend(read<std::uint64_t>(stripe + 8 * i),
                              read<std::uint64_t>(stripe + 8 * (i ^ 1)), secret(secret_at + 8 * i));
  }
}

inline std::uint64_t hash_long(const std::uint8_t* in, std::size_t size) noexcept {
  std::uint64_t accumulators[kAccumulators];
  for (std::size_t i = 0; i < kAccumulators; ++i) accumulators[i] = first_accumulator(i);
  const std::uint8_t* at = in;
  for (std::size_t block = whole_blocks(size); block > 0; --block, at += kBlockBytes) {
    for (std::size_t s = 0; s < kBlockStripes; ++s) {
      accumulate(accumulators, at + kStripeBytes * s, 8 * s);
    }
    for (std::size_t i = 0; i < kAccumulators; ++i) accumulators[i] = scrambled(accumulators[i], i);
  }
  for (std::size_t s = 0; s < left_stripes(size); ++s) {
    accumulate(accumulators, at + kStripeBytes * s, 8 * s);
  }
  accumulate(accumulators, in + size - kStripeBytes, kLastStripeSecret);
  std::uint64_t sum = 0;
  for (std::size_t pair = 0; pair < kAccumulators / 2; ++pair) {
    sum += merged(accumulators[2 * pair], accumulators[2 * pair + 1], pair);
  }
  return finished(sum, size);
}

inline std::uint64_t hash(const std::uint8_t* in, std::size_t size) noexcept {
  return size <= kShortBytesMax ? hash_short(in, size) : hash_long(in, size);
}

}  // namespace weightfs::kernels::xxh3
