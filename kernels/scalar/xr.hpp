// XR and XS: the block modes that code changes by the exponent class of the old element: the rank
// of each change among the members of its class, and its size in units in the last place.
//
//     old block --exponents--> class of each element --+
//     changes (position, difference) ------------------+--> per class: ranks, differences
//                                                              |
//     mode | header | counts | U: unary parts | S: signs | L: low bits | Q: value bits
//
// XS has the same lists as XR with a shorter header, and no padding between S, L and Q: for blocks
// with few changes, where the header dominates.
//
// Internal to kernels/. The scalar functions are the specification; other variants share the parts
// that do not depend on the number of elements (choose_z, cut_xr, encode_best).
//
// Threads: pure functions.  Format: docs/FORMAT.md, "XR" and "XS".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/block/bits.hpp"
#include "kernels/block/block.hpp"
#include "kernels/block/changes.hpp"
#include "kernels/block/scratch.hpp"

namespace weightfs::kernels {

inline constexpr unsigned kClasses = 12;
inline constexpr unsigned kZMax = 43;  // a decoder's limit; an encoder stays below 12 + width

using ClassCounts = std::array<std::uint32_t, kClasses>;  // each 0 .. 65,536

using ExponentCounts = std::array<std::uint32_t, 256>;  // elements with each exponent field

/// The changes of a block, ordered by class, then by position.  Not owning.
struct ClassedChanges {
  ClassCounts total{};                       // members of the class in the old block
  ClassCounts changed{};                     // how many of them changed
  std::span<const std::uint16_t> rank;       // of each change, among the members of its class
  std::span<const std::int32_t> difference;  // of each change
  std::span<const std::uint16_t> exception;  // which of them are larger than one unit, ascending
};

/// The class that an exponent field belongs to.
constexpr unsigned class_of(unsigned exponent, unsigned ebase) noexcept {
  if (exponent <= ebase) return 0;
  return exponent - ebase < kClasses ? exponent - ebase : kClasses - 1;
}

/// The number of elements of the old block in each class.
ClassCounts count_classes(Kind kind, ByteSpan old_block, unsigned ebase) noexcept;

/// The encoder's choice of ebase: it puts the smallest exponent that at least 98 % of the old
/// elements do not exceed into the top class.
///
/// Requires: the block is not empty.
unsigned choose_ebase(const ExponentCounts& counts) noexcept;
unsigned choose_ebase(Kind kind, ByteSpan old_block) noexcept;

/// Sorts the changes into classes; the result is in `scratch`.
ClassedChanges classify(Kind kind, ByteSpan old_block, const Changes& changes, unsigned ebase,
                        Scratch& scratch) noexcept;

/// The encoder's choice of z: fewest bits in U, L and Q, the smallest if equal, below 12 + width.
unsigned choose_z(Kind kind, const ClassedChanges& classed) noexcept;

/// Appends one block of mode xr or xs of at most `bytes_max` bytes.
///
/// Returns: false if it would be longer or cannot be expressed; `coded` is unchanged.
bool encode_xr(Kind kind, Mode mode, unsigned ebase, unsigned z, const ClassedChanges& classed,
               std::size_t bytes_max, std::vector<std::byte>& coded);

// ---- parts of encode_best() that an encoder of its own shares ----

inline constexpr std::uint64_t kUnaryBytesMax = 65535;     // ulen is u16 in XR,
inline constexpr std::uint64_t kShortUnaryBytesMax = 255;  // and u8 in XS,
inline constexpr unsigned kShortZMax = 15;                 // where z has 4 bits

using XrCounts = std::array<std::uint32_t, kClasses + 1>;  // of each class, and of the exceptions

struct XrHeader {
  unsigned ebase = 0, z = 0;
  std::uint64_t unary_bytes = 0;  // at most kUnaryBytesMax
  XrCounts counts{};
};

/// Bytes of a block of mode xr before U.
std::uint64_t long_header_bytes(const XrCounts& counts) noexcept;
void write_long_header(const XrHeader& header, BitWriter& writer) noexcept;

void append_raw(ByteSpan block, std::vector<std::byte>& coded);

/// True if a coded block of so many bytes is not to be replaced by a raw one.
constexpr bool saves_an_eighth(std::uint64_t bytes, ByteSpan block) noexcept {
  return 8 * bytes <= 7 * (1 + std::uint64_t{block.size()});
}

/// Appends the block in the mode that the encoder's rule selects: EF, XR, XS or raw.
///
/// Requires: at least one change; `changes` and `classed` describe the same changes.
void encode_best(Kind kind, ByteSpan new_block, unsigned ebase, const Changes& changes,
                 const ClassedChanges& classed, std::vector<std::byte>& coded);

/// A block of mode xr or xs, cut into its parts.  Everything that can be checked without reading
/// codes has been checked; the fields say what is guaranteed.
struct XrParts {
  unsigned ebase = 0, z = 0;
  ClassCounts changed{};              // cnt
  ClassCounts listed{};               // m: ranks in the list of the class
  ClassCounts low_bits{};             // k
  std::uint32_t inverted = 0;         // bit c: the list has the members that did not change
  std::uint32_t listed_count = 0;     // ranks in all lists
  std::uint32_t change_count = 0;     // n, at least 1
  std::uint32_t direct_count = 0;     // nd: changes of classes below z come first
  std::uint32_t exception_count = 0;  // ne
  unsigned exception_low_bits = 0;    // ke
  ByteSpan unary;  // U: has exactly the required codes, and ends with the last one
  ByteSpan rest;   // S, L, Q

  // Bit offsets in `rest`, in this order.  Those up to values_at are within it, and paddings before
  // it are zero.
  std::uint64_t signs_at = 0;
  std::uint64_t lows_at = 0;            // low bits of ranks
  std::uint64_t exception_lows_at = 0;  // low bits of exceptions
  std::uint64_t values_at = 0;          // Q
};

/// The order of the Exp-Golomb code of a direct change of this class.
constexpr unsigned direct_order(unsigned width, unsigned z, unsigned cls) noexcept {
  return z - 1 - cls < width - 1 ? z - 1 - cls : width - 1;
}

/// The first byte of a header, which determines how the old elements are counted.
/// Returns: nullopt if `coded` is too short.
std::optional<unsigned> ebase_of(ByteSpan coded) noexcept;

/// Cuts a coded block, given the number of elements of the old block in each class.
///
/// Requires: `coded` begins with mode xr or xs; `total` was counted with ebase_of(coded).
/// Returns: nullopt if it is malformed.  The caller checks the rest: ranks below total, exceptions
/// below change_count - direct_count, values, and that Q ends with the block.
///
/// Note: if the last rank of an inverted list is too large, the list may name more members as
/// changed than `changed` says, and so more than there are signs and values.
std::optional<XrParts> cut_xr(ByteSpan coded, const ClassCounts& total) noexcept;

/// Decodes a block of mode xr or xs.  `new_block` need not be initialised.
///
/// Returns: false if `coded` is malformed; `new_block` is then undefined.
[[nodiscard]] bool decode_xr(Kind kind, ByteSpan old_block, ByteSpan coded,
                             std::span<std::byte> new_block, Scratch& scratch) noexcept;

}  // namespace weightfs::kernels
