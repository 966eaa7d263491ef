// An EF block has four planes, U, S, L and Q. Three lists (the positions, which changes are
// exceptions, and how large these are) share U. The encoder iterates over the changes once for each
// plane and writes the planes in order.  The decoder counts the one bits of U, starts a reader at
// the beginning of each list, and visits the changes in one pass: each entry of a list is checked
// when it is used, the planes as a whole at the beginning and at the end.
#include "kernels/scalar/ef.hpp"

#include <bit>
#include <cassert>
#include <optional>

#include "kernels/block/bits.hpp"
#include "kernels/block/ordered.hpp"

namespace weightfs::kernels {
namespace {

constexpr std::size_t kHeaderBytes = 7;
constexpr std::uint64_t kCountMax = 65535;  // ulen and ne are u16

/// Widths and sizes derived from the changes.
struct Plan {
  unsigned low_bits;  // l
  unsigned gap_bits;  // ke
  std::uint64_t unary_bytes;
  std::uint64_t block_bytes;
};

/// Calls visit(gap, v) for each exception.
template <typename Visit>
void for_each_exception(const Changes& changes, Visit&& visit) {
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < changes.exception_count; ++i) {
    const std::uint64_t number = changes.exception[i];
    visit(number - next, magnitude(changes.difference[number]) - 1);
    next = number + 1;
  }
}

unsigned value_bits(std::uint32_t v) noexcept {
  return static_cast<unsigned>(std::bit_width(v)) - 1;
}

Plan plan(const Changes& changes, std::size_t elements) noexcept {
  const std::uint64_t n = changes.count;
  const std::uint64_t ne = changes.exception_count;
  const unsigned low_bits = rice(elements, n);
  const unsigned gap_bits = rice(n, ne);
  std::uint64_t unary_bits = n + (changes.position[n - 1] >> low_bits) + 2 * ne;
  std::uint64_t values_bits = 0;
  for_each_exception(changes, [&](std::uint64_t gap, std::uint32_t v) {
    unary_bits += (gap >> gap_bits) + value_bits(v);
    values_bits += value_bits(v);
  });
  const std::uint64_t unary_bytes = plane_bytes(unary_bits);
  return {low_bits, gap_bits, unary_bytes,
          kHeaderBytes + unary_bytes + plane_bytes(n) + plane_bytes(n * low_bits + ne * gap_bits) +
              plane_bytes(values_bits)};
}

void write_unary(const Changes& changes, const Plan& sizes, BitWriter& writer) noexcept {
  std::uint64_t previous = 0;
  for (std::size_t i = 0; i < changes.count; ++i) {
    const std::uint64_t high = changes.position[i] >> sizes.low_bits;
    writer.put_unary(high - previous);
    previous = high;
  }
  for_each_exception(
      changes, [&](std::uint64_t gap, std::uint32_t) { writer.put_unary(gap >> sizes.gap_bits); });
  for_each_exception(changes,
                     [&](std::uint64_t, std::uint32_t v) { writer.put_unary(value_bits(v)); });
  writer.end_plane();
}

void write_signs(const Changes& changes, BitWriter& writer) noexcept {
  for (std::size_t i = 0; i < changes.count; ++i) writer.put(changes.difference[i] < 0, 1);
  writer.end_plane();
}

void write_lows(const Changes& changes, const Plan& sizes, BitWriter& writer) noexcept {
  const std::uint64_t low_mask = (std::uint64_t{1} << sizes.low_bits) - 1;
  const std::uint64_t gap_mask = (std::uint64_t{1} << sizes.gap_bits) - 1;
  for (std::size_t i = 0; i < changes.count; ++i) {
    writer.put(changes.position[i] & low_mask, sizes.low_bits);
  }
  for_each_exception(changes, [&](std::uint64_t gap, std::uint32_t) {
    writer.put(gap & gap_mask, sizes.gap_bits);
  });
  writer.end_plane();
}

void write_values(const Changes& changes, BitWriter& writer) noexcept {
  for_each_exception(changes, [&](std::uint64_t, std::uint32_t v) {
    assert(v > 0);
    writer.put(v ^ (std::uint32_t{1} << value_bits(v)), value_bits(v));
  });
  writer.end_plane();
}

/// A coded block, cut into its planes.
struct Planes {
  std::uint64_t changes;     // n
  std::uint64_t exceptions;  // ne
  unsigned low_bits;         // l
  unsigned gap_bits;         // ke
  ByteSpan unary, signs, lows, values;
};

/// Cuts a block, and checks its counts, sizes, number of unary codes and padding. (Not the padding
/// of Q, which depends on the exceptions.)
/// Returns: nullopt if they are wrong.
std::optional<Planes> cut(ByteSpan coded, std::uint64_t elements) noexcept {
  if (coded.size() < kHeaderBytes) return std::nullopt;
  const std::uint64_t unary_bytes = load<std::uint16_t>(coded.data() + 1);
  const std::uint64_t n = std::uint64_t{load<std::uint16_t>(coded.data() + 3)} + 1;
  const std::uint64_t ne = load<std::uint16_t>(coded.data() + 5);
  if (n > elements || ne > n) return std::nullopt;

  Planes planes{n, ne, rice(elements, n), rice(n, ne), {}, {}, {}, {}};
  const std::uint64_t lows_bits = n * planes.low_bits + ne * planes.gap_bits;
  ByteSpan rest = coded.subspan(kHeaderBytes);
  if (unary_bytes + plane_bytes(n) + plane_bytes(lows_bits) > rest.size()) return std::nullopt;
  const auto take = [&rest](std::uint64_t bytes) {
    const ByteSpan plane = rest.first(bytes);
    rest = rest.subspan(bytes);
    return plane;
  };
  planes.unary = take(unary_bytes);
  planes.signs = take(plane_bytes(n));
  planes.lows = take(plane_bytes(lows_bits));
  planes.values = rest;

  if (count_ones(planes.unary) != n + 2 * ne) return std::nullopt;
  if (planes.unary.back() == std::byte{0}) return std::nullopt;
  if (!ends_at(planes.signs, n) || !ends_at(planes.lows, lows_bits)) return std::nullopt;
  return planes;
}

/// Reads the lists of exceptions.
class ExceptionReader {
 public:
  explicit ExceptionReader(const Planes& planes) noexcept
      : planes_(planes),
        left_(planes.exceptions),
        gaps_(planes.unary, planes.changes),
        widths_(planes.unary, planes.changes + planes.exceptions),
        gap_offset_(planes.changes * planes.low_bits) {}

  /// The number, among the changes, of the next exception; the number of changes if there is none;
  /// nullopt if it is out of range.
  std::optional<std::uint64_t> next_number() noexcept {
    if (left_ == 0) return planes_.changes;
    --left_;
    const std::uint64_t high = gaps_.next();
    const std::uint64_t low = get_field(planes_.lows, gap_offset_, planes_.gap_bits);
    gap_offset_ += planes_.gap_bits;
    const std::uint64_t number = first_possible_ + (high << planes_.gap_bits | low);
    if (number >= planes_.changes) return std::nullopt;
    first_possible_ = number + 1;
    return number;
  }

  /// The magnitude of that exception in elements of `width` bits; nullopt if it is out of range.
  std::optional<std::uint32_t> next_magnitude(unsigned width, bool is_negative) noexcept {
    const std::uint64_t bits = widths_.next();
    if (bits >= width) return std::nullopt;
    const auto count = static_cast<unsigned>(bits);
    const std::uint64_t v =
        std::uint64_t{1} << count | get_field(planes_.values, value_offset_, count);
    value_offset_ += count;
    const std::uint64_t largest = (std::uint64_t{1} << (width - 1)) - (is_negative ? 0 : 1);
    if (v + 1 > largest) return std::nullopt;
    return static_cast<std::uint32_t>(v + 1);
  }

  /// True if the exceptions read so far fill Q.
  [[nodiscard]] bool at_end() const noexcept { return ends_at(planes_.values, value_offset_); }

 private:
  const Planes& planes_;
  std::uint64_t left_;
  UnaryReader gaps_;
  UnaryReader widths_;
  std::uint64_t gap_offset_;        // bits, in L
  std::uint64_t value_offset_ = 0;  // bits, in Q
  std::uint64_t first_possible_ = 0;
};

/// Calls visit(position, difference) for each change, in order, until one is malformed.
template <typename Visit>
bool visit_changes(const Planes& planes, std::uint64_t elements, unsigned width,
                   Visit&& visit) noexcept {
  UnaryReader highs(planes.unary, 0);
  ExceptionReader exceptions(planes);
  std::optional<std::uint64_t> exception = exceptions.next_number();
  if (!exception) return false;
  std::uint64_t high = 0;
  std::uint64_t first_possible = 0;
  for (std::uint64_t i = 0; i < planes.changes; ++i) {
    high += highs.next();
    const std::uint64_t low = get_field(planes.lows, i * planes.low_bits, planes.low_bits);
    const std::uint64_t position = high << planes.low_bits | low;
    if (position < first_possible || position >= elements) return false;
    first_possible = position + 1;

    const bool is_negative = get_field(planes.signs, i, 1) != 0;
    std::uint32_t size = 1;
    if (i == *exception) {
      const auto found = exceptions.next_magnitude(width, is_negative);
      if (!found) return false;
      size = *found;
      exception = exceptions.next_number();
      if (!exception) return false;
    }
    visit(static_cast<std::size_t>(position), negate_if(is_negative, size));
  }
  return exceptions.at_end();
}

}  // namespace

bool encode_ef(const Changes& changes, std::size_t elements, std::size_t bytes_max,
               std::vector<std::byte>& coded) {
  assert(changes.count > 0 && changes.count <= elements);
  const Plan sizes = plan(changes, elements);
  if (sizes.unary_bytes > kCountMax || changes.exception_count > kCountMax) return false;
  if (sizes.block_bytes > bytes_max) return false;

  const std::size_t begin = coded.size();
  coded.resize(begin + sizes.block_bytes + kBitWriterSlack);
  BitWriter writer(coded.data() + begin);
  writer.put(static_cast<std::uint64_t>(Mode::ef), 8);
  writer.put(sizes.unary_bytes, 16);
  writer.put(changes.count - 1, 16);
  writer.put(changes.exception_count, 16);
  write_unary(changes, sizes, writer);
  write_signs(changes, writer);
  write_lows(changes, sizes, writer);
  write_values(changes, writer);
  coded.resize(begin + sizes.block_bytes);
  return true;
}

bool apply_ef(Kind kind, ByteSpan coded, std::span<std::byte> block) noexcept {
  return with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    const std::size_t elements = block.size() / sizeof(Bits);
    const std::optional<Planes> planes = cut(coded, elements);
    if (!planes) return false;
    return visit_changes(*planes, elements, Element::kWidth,
                         [&](std::size_t position, std::uint32_t difference) {
                           std::byte* const at = block.data() + position * sizeof(Bits);
                           store(at, Element::moved(load<Bits>(at), difference));
                         });
  });
}

bool read_ef(Kind kind, std::size_t elements, ByteSpan coded, Changes& changes) noexcept {
  changes.count = 0;
  changes.exception_count = 0;
  const std::optional<Planes> planes = cut(coded, elements);
  if (!planes) return false;
  const auto width = static_cast<unsigned>(8 * width_bytes(kind));
  std::size_t count = 0;
  std::size_t exception_count = 0;
  const bool is_good = visit_changes(
      *planes, elements, width, [&](std::size_t position, std::uint32_t difference_bits) {
        const auto difference = static_cast<std::int32_t>(difference_bits);
        changes.position[count] = static_cast<std::uint16_t>(position);
        changes.difference[count] = difference;
        if (magnitude(difference) > 1) {
          changes.exception[exception_count++] = static_cast<std::uint16_t>(count);
        }
        ++count;
      });
  changes.count = count;
  changes.exception_count = exception_count;
  return is_good;
}

}  // namespace weightfs::kernels
