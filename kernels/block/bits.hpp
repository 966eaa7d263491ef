// Bits: planes of bit fields and unary codes, and the rule for the width of a field.
//
// Bit i of a plane is bit i mod 8 of byte i / 8; fields are written lowest bit first.
//
// Format: docs/FORMAT.md, "Blocks".
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/block/block.hpp"

namespace weightfs::kernels {

/// The number of low bits to store for each of `listed` increasing numbers below `total`.
constexpr unsigned rice(std::uint64_t total, std::uint64_t listed) noexcept {
  if (listed == 0) return 0;
  const auto length = static_cast<unsigned>(std::bit_width((2 * total - listed) / (2 * listed)));
  return length > 1 ? length - 1 : 0;
}

/// Bytes of a plane of `bits` bits.
constexpr std::uint64_t plane_bytes(std::uint64_t bits) noexcept {
  return bits / 8 + (bits % 8 != 0);
}

/// The 8 bytes from `at` on; bytes past the end read as zero.
inline std::uint64_t load_word(ByteSpan bytes, std::size_t at) noexcept {
  std::uint64_t word = 0;
  if (bytes.size() >= sizeof word && at <= bytes.size() - sizeof word) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
  } else if (at < bytes.size()) {
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  }
  return word;
}

/// The field of `width` <= 57 bits at bit `offset`; bits past the end are zero.
inline std::uint64_t get_field(ByteSpan plane, std::uint64_t offset, unsigned width) noexcept {
  const std::uint64_t word = load_word(plane, offset / 8) >> (offset % 8);
  return word & ((std::uint64_t{1} << width) - 1);
}

/// Reads fields one after another.
class FieldReader {
 public:
  FieldReader(ByteSpan plane, std::uint64_t offset) noexcept : plane_(plane), offset_(offset) {}

  /// The next field of `width` <= 57 bits; bits past the end are zero.
  std::uint64_t next(unsigned width) noexcept {
    const std::uint64_t field = get_field(plane_, offset_, width);
    offset_ += width;
    return field;
  }

  /// Where the next field begins; may be past the end.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  ByteSpan plane_;
  std::uint64_t offset_;
};

/// True if all bits from `used` on are zero, and `used` is in the plane's last byte or at its end.
inline bool ends_at(ByteSpan plane, std::uint64_t used) noexcept {
  return plane.size() == plane_bytes(used) && get_field(plane, used, 8) == 0;
}

/// Writes planes one after another into memory with kBitWriterSlack bytes to spare: each step
/// stores a whole word, and what it spills past the end of a plane is overwritten by the next.  The
/// last call must be end_plane().
inline constexpr std::size_t kBitWriterSlack = sizeof(std::uint64_t);

class BitWriter {
 public:
  explicit BitWriter(std::byte* at) noexcept : at_(at) {}

  /// Appends a field.
  /// Requires: width <= 56; value < 2^width.
  void put(std::uint64_t value, unsigned width) noexcept {
    if (filled_ + width > 63) store_bytes();
    word_ |= value << filled_;
    filled_ += width;
  }

  /// Appends `zeros` zero bits, then a one.
  void put_unary(std::uint64_t zeros) noexcept {
    if (filled_ + zeros > 62) {
      store_bytes();
      for (; zeros > 55; zeros -= 55) put(0, 55);
      if (filled_ + zeros > 62) store_bytes();
    }
    filled_ += static_cast<unsigned>(zeros);
    word_ |= std::uint64_t{1} << filled_++;
  }

  /// Pads with zero bits to a whole byte; the next field begins a plane.
  void end_plane() noexcept {
    filled_ = (filled_ + 7) / 8 * 8;
    store_bytes();
  }

 private:
  /// Stores the full bytes.
  void store_bytes() noexcept {
    std::memcpy(at_, &word_, sizeof word_);
    at_ += filled_ / 8;
    word_ = filled_ < 64 ? word_ >> filled_ / 8 * 8 : 0;  // 64 if a plane ends here
    filled_ %= 8;
  }

  std::byte* at_;
  std::uint64_t word_ = 0;  // bits not stored yet
  unsigned filled_ = 0;     // how many: 0..63, less than 8 after store_bytes()
};

/// The number of one bits in a plane.
inline std::uint64_t count_ones(ByteSpan plane) noexcept {
  std::uint64_t ones = 0;
  for (std::size_t at = 0; at < plane.size(); at += 8) {
    ones += static_cast<unsigned>(std::popcount(load_word(plane, at)));
  }
  return ones;
}

/// Reads the unary codes of a plane: the distances between its one bits.
class UnaryReader {
 public:
  /// Starts after the first `skipped` codes.
  /// Requires: the plane has that many.
  UnaryReader(ByteSpan plane, std::uint64_t skipped) noexcept
      : plane_(plane), word_(load_word(plane, 0)) {
    if (skipped == 0) return;
    for (std::uint64_t left = skipped - 1;;) {
      const auto ones = static_cast<unsigned>(std::popcount(word_));
      if (left < ones) {
        for (; left > 0; --left) word_ &= word_ - 1;
        break;
      }
      left -= ones;
      load_next();
    }
    next();
  }

  /// The next code.
  /// Requires: there is one.
  std::uint64_t next() noexcept {
    while (word_ == 0) load_next();
    const std::uint64_t begin = end_;
    const std::uint64_t one =
        8 * std::uint64_t{at_} + static_cast<unsigned>(std::countr_zero(word_));
    word_ &= word_ - 1;
    end_ = one + 1;
    return one - begin;
  }

 private:
  void load_next() noexcept {
    at_ += 8;
    word_ = load_word(plane_, at_);
  }

  ByteSpan plane_;
  std::size_t at_ = 0;     // where word_ was loaded from
  std::uint64_t word_;     // without the ones already passed
  std::uint64_t end_ = 0;  // bit offset after the last code read
};

}  // namespace weightfs::kernels
