// Block: the unit of coding.  Chunk: the unit of hashing, scheduling and lazy reading.
//
// A tensor is a run of elements in memory order.  It is cut into blocks of kBlockElements elements,
// the last one possibly shorter, and 16 consecutive blocks make a chunk:
//
//     tensor  |........ chunk 0 ........|........ chunk 1 ........|. chunk 2 .|
//     chunk   | block 0 | block 1 | ... | block 15 |
//
// The kind of a tensor determines the width of an element and the position of its exponent.  Dtypes
// without a kind of their own are coded as bytes (Kind::u8), so every tensor has a whole number of
// elements.
//
// Format: docs/FORMAT.md, "Blocks".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weightfs::kernels {

using ByteSpan = std::span<const std::byte>;

inline constexpr std::size_t kBlockElements = 65536;
inline constexpr std::size_t kChunkBlocks = 16;

/// How to interpret the bits of an element; the values are those of the format.
enum class Kind : std::uint8_t { u8 = 0, bf16 = 1, f16 = 2, f32 = 3, f8_e4m3 = 4, f8_e5m2 = 5 };

/// The first byte of a coded block; the values are those of the format.  Packs use `same`, `raw`,
/// `ef`, `xr` and `xs`; patches use `same`, `ef` and `diff`.
enum class Mode : std::uint8_t { same = 0, raw = 1, ef = 2, xr = 3, diff = 4, xs = 5 };

/// Bytes of one element: 1, 2 or 4.
constexpr std::size_t width_bytes(Kind kind) noexcept {
  switch (kind) {
    case Kind::u8:
    case Kind::f8_e4m3:
    case Kind::f8_e5m2:
      return 1;
    case Kind::bf16:
    case Kind::f16:
      return 2;
    case Kind::f32:
      return 4;
  }
  return 1;
}

/// The position of an element's exponent; the mask is 0 for a kind without one.
struct ExponentField {
  unsigned shift = 0;
  unsigned mask = 0;

  [[nodiscard]] constexpr unsigned of(std::uint32_t bits) const noexcept {
    return bits >> shift & mask;
  }
};

constexpr ExponentField exponent_field(Kind kind) noexcept {
  switch (kind) {
    case Kind::u8:
      break;
    case Kind::bf16:
      return {7, 0xFF};
    case Kind::f16:
      return {10, 0x1F};
    case Kind::f32:
      return {23, 0xFF};
    case Kind::f8_e4m3:
      return {3, 0xF};
    case Kind::f8_e5m2:
      return {2, 0x1F};
  }
  return {};
}

/// Bytes of a full block, or chunk, of this kind (64 KiB .. 256 KiB; 1 .. 4 MiB).
constexpr std::size_t block_bytes(Kind kind) noexcept { return kBlockElements * width_bytes(kind); }
constexpr std::size_t chunk_bytes(Kind kind) noexcept { return kChunkBlocks * block_bytes(kind); }

inline constexpr std::size_t kChunkBytesMax = chunk_bytes(Kind::f32);

/// The longest coded block: the mode byte and the plain elements.
constexpr std::size_t coded_block_bytes_max(Kind kind) noexcept { return 1 + block_bytes(kind); }

/// The number of blocks, or chunks, in `size_bytes` bytes of this kind; 0 for 0.
constexpr std::uint64_t block_count(Kind kind, std::uint64_t size_bytes) noexcept {
  return size_bytes / block_bytes(kind) + (size_bytes % block_bytes(kind) != 0);
}
constexpr std::uint64_t chunk_count(Kind kind, std::uint64_t size_bytes) noexcept {
  return size_bytes / chunk_bytes(kind) + (size_bytes % chunk_bytes(kind) != 0);
}

}  // namespace weightfs::kernels
