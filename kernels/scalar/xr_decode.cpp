// A block of mode XR or XS is cut first: this covers everything that follows from the header and
// from the number of old elements in each class, including the number of one bits in U. Then the
// old elements are sorted by class, and the changes are applied class by class, reading each list
// once:
//
//     U  | ranks of class 0, 1, ..., 11 | exceptions | direct values | values of exceptions |
//     S  | one bit for each change                                                          |
//     L  | ranks of class 0, 1, ..., 11 | exceptions |
//     Q                                               | direct values | values of exceptions |
//
// Each entry of a list is checked when it is used.  Sums have 64 bits, so none can wrap.
#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>

#include "kernels/block/bits.hpp"
#include "kernels/block/copy_block.hpp"
#include "kernels/block/ordered.hpp"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels {
namespace {

constexpr unsigned kCounts = kClasses + 1;  // of each class, and of the exceptions
constexpr unsigned kCountBitsMax = 17;
constexpr unsigned kShortCountBitsMax = 16;  // b of a count in XS

/// A header, and the bytes after it.
struct Header {
  unsigned ebase = 0, z = 0;
  std::size_t unary_bytes = 0;
  std::array<std::uint32_t, kCounts> counts{};
  ByteSpan body;  // U, S, L, Q
};

unsigned byte_at(ByteSpan coded, std::size_t at) noexcept {
  return std::to_integer<unsigned>(coded[at]);
}

std::optional<Header> cut_long_header(ByteSpan coded) noexcept {
  constexpr std::size_t kFixedBytes = 6;
  if (coded.size() < kFixedBytes) return std::nullopt;
  Header header{
      byte_at(coded, 1), byte_at(coded, 4), load<std::uint16_t>(coded.data() + 2), {}, {}};
  const unsigned width = byte_at(coded, 5);
  if (header.z > kZMax || width == 0 || width > kCountBitsMax) return std::nullopt;

  const std::uint64_t counts_bits = std::uint64_t{kCounts} * width;
  const ByteSpan rest = coded.subspan(kFixedBytes);
  if (plane_bytes(counts_bits) > rest.size()) return std::nullopt;
  const ByteSpan plane = rest.first(plane_bytes(counts_bits));
  if (!ends_at(plane, counts_bits)) return std::nullopt;
  FieldReader fields(plane, 0);
  for (std::uint32_t& count : header.counts) {
    count = static_cast<std::uint32_t>(fields.next(width));
  }
  header.body = rest.subspan(plane.size());
  return header;
}

std::optional<Header> cut_short_header(ByteSpan coded) noexcept {
  constexpr std::size_t kFixedBytes = 4;
  if (coded.size() < kFixedBytes) return std::nullopt;
  Header header{byte_at(coded, 1), byte_at(coded, 3) % 16, byte_at(coded, 2), {}, {}};
  const unsigned order = byte_at(coded, 3) / 16;

  const ByteSpan rest = coded.subspan(kFixedBytes);
  FieldReader fields(rest, 0);
  for (std::uint32_t& count : header.counts) {
    const std::uint64_t ahead = get_field(rest, fields.offset(), kShortCountBitsMax + 1);
    if (ahead == 0) return std::nullopt;
    const auto zeros = static_cast<unsigned>(std::countr_zero(ahead));
    const unsigned bits = zeros + order;
    if (bits > kShortCountBitsMax) return std::nullopt;
    fields.next(zeros + 1);
    count = (1U << bits) + static_cast<std::uint32_t>(fields.next(bits)) - (1U << order);
  }
  const std::uint64_t counts_bytes = plane_bytes(fields.offset());
  if (counts_bytes > rest.size()) return std::nullopt;
  if (!ends_at(rest.first(counts_bytes), fields.offset())) return std::nullopt;
  header.body = rest.subspan(counts_bytes);
  return header;
}

/// Fills in what follows from the counts.
/// Returns: false if they contradict each other or `total`.
bool set_counts(const Header& header, const ClassCounts& total, XrParts& parts) noexcept {
  for (unsigned c = 0; c < kClasses; ++c) {
    const std::uint32_t changed = header.counts.at(c);
    if (changed > total[c]) return false;
    const bool is_inverted = 2 * changed > total[c];
    parts.changed[c] = changed;
    parts.inverted |= std::uint32_t{is_inverted} << c;
    parts.listed[c] = is_inverted ? total[c] - changed : changed;
    parts.low_bits[c] = rice(total[c], parts.listed[c]);
    parts.listed_count += parts.listed[c];
    parts.change_count += changed;
    if (c < parts.z) parts.direct_count += changed;
  }
  parts.exception_count = header.counts.back();
  const std::uint32_t unit_count = parts.change_count - parts.direct_count;
  if (parts.change_count == 0 || parts.exception_count > unit_count) return false;
  parts.exception_low_bits = rice(unit_count, parts.exception_count);
  return true;
}

/// True if U has `codes` codes and ends with the last one.
bool holds_codes(ByteSpan unary, std::uint64_t codes) noexcept {
  if (count_ones(unary) != codes) return false;
  return unary.empty() || unary.back() != std::byte{0};
}

/// Locates S, L and Q: planes in XR, one run of bits in XS.
/// Returns: false if S or L is not within `rest`, or a padding before Q is not zero.
bool set_offsets(Mode mode, XrParts& parts) noexcept {
  const bool is_padded = mode == Mode::xr;
  const auto end_of_plane = [&](std::uint64_t at) { return is_padded ? 8 * plane_bytes(at) : at; };
  const std::uint64_t rank_lows_bits = std::inner_product(parts.listed.begin(), parts.listed.end(),
                                                          parts.low_bits.begin(), std::uint64_t{0});
  const std::uint64_t signs_end = parts.change_count;
  parts.lows_at = end_of_plane(signs_end);
  parts.exception_lows_at = parts.lows_at + rank_lows_bits;
  const std::uint64_t lows_end =
      parts.exception_lows_at + std::uint64_t{parts.exception_count} * parts.exception_low_bits;
  parts.values_at = end_of_plane(lows_end);
  if (parts.values_at > 8 * std::uint64_t{parts.rest.size()}) return false;
  const auto is_zero = [&](std::uint64_t from, std::uint64_t to) {
    return get_field(parts.rest, from, static_cast<unsigned>(to - from)) == 0;
  };
  return is_zero(signs_end, parts.lows_at) && is_zero(lows_end, parts.values_at);
}

/// Reads the ranks of the lists, class by class.
class RankReader {
 public:
  explicit RankReader(const XrParts& parts) noexcept
      : gaps_(parts.unary, 0), lows_(parts.rest, parts.lows_at) {}

  void begin_list() noexcept { first_possible_ = 0; }

  /// The next rank of the list; may be too large for the class.
  std::uint64_t next(unsigned low_bits) noexcept {
    const std::uint64_t high = gaps_.next();
    const std::uint64_t rank = first_possible_ + (high << low_bits | lows_.next(low_bits));
    first_possible_ = rank + 1;
    return rank;
  }

 private:
  UnaryReader gaps_;
  FieldReader lows_;
  std::uint64_t first_possible_ = 0;
};

/// Reads the differences of the changes, in their order.
class DifferenceReader {
 public:
  DifferenceReader(const XrParts& parts, unsigned width) noexcept
      : parts_(parts),
        width_(width),
        exceptions_left_(parts.exception_count),
        signs_(parts.rest, parts.signs_at),
        gaps_(parts.unary, parts.listed_count),
        gap_lows_(parts.rest, parts.exception_lows_at),
        lengths_(parts.unary, std::uint64_t{parts.listed_count} + parts.exception_count),
        values_(parts.rest, parts.values_at) {
    find_exception();
  }

  /// The next difference, modulo 2^32, of a change of class `cls`; nullopt if it is out of range.
  std::optional<std::uint32_t> next(unsigned cls) noexcept {
    std::uint64_t size = 1;
    if (cls < parts_.z) {
      size = 1 + next_value(direct_order(width_, parts_.z, cls));
    } else if (unit_number_++ == exception_) {
      size = 2 + next_value(0);
      find_exception();
    }
    const bool is_negative = signs_.next(1) != 0;
    const std::uint64_t largest = (std::uint64_t{1} << (width_ - 1)) - (is_negative ? 0 : 1);
    if (size > largest) return std::nullopt;
    return negate_if(is_negative, static_cast<std::uint32_t>(size));
  }

  /// True if the values read so far fill Q, and no exception is left.
  [[nodiscard]] bool at_end() const noexcept {
    return exception_ == kNone && ends_at(parts_.rest, values_.offset());
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  /// An Exp-Golomb code; if it has too many bits, a value too large for any element.
  std::uint64_t next_value(unsigned order) noexcept {
    const std::uint64_t bits = lengths_.next() + order;
    if (bits >= width_) return kNone >> 1;
    const auto count = static_cast<unsigned>(bits);
    return (std::uint64_t{1} << count) + values_.next(count) - (std::uint64_t{1} << order);
  }

  void find_exception() noexcept {
    if (exceptions_left_ == 0) {
      exception_ = kNone;
      return;
    }
    --exceptions_left_;
    const std::uint64_t low = gap_lows_.next(parts_.exception_low_bits);
    exception_ = unit_number_ + (gaps_.next() << parts_.exception_low_bits | low);
  }

  const XrParts& parts_;
  unsigned width_;
  std::uint64_t unit_number_ = 0;  // of the next unit change
  std::uint64_t exception_ = kNone;
  std::uint64_t exceptions_left_;
  FieldReader signs_;
  UnaryReader gaps_;
  FieldReader gap_lows_;
  UnaryReader lengths_;
  FieldReader values_;
};

/// Calls visit(rank) for each changed member of a class, in ascending order.
/// Returns: false if a rank leaves too few members for the ranks after it (so no more members are
/// visited than changed), or as soon as `visit` returns false.
template <typename Visit>
bool for_each_changed(const XrParts& parts, unsigned cls, std::uint32_t total, RankReader& ranks,
                      Visit&& visit) {
  const bool is_inverted = (parts.inverted >> cls & 1) != 0;
  std::uint64_t next = 0;  // the first member not passed yet
  ranks.begin_list();
  for (std::uint32_t i = 0; i < parts.listed[cls]; ++i) {
    const std::uint64_t rank = ranks.next(parts.low_bits[cls]);
    if (rank + (parts.listed[cls] - i) > total) return false;
    if (!is_inverted) next = rank;
    for (const std::uint64_t end = is_inverted ? rank : rank + 1; next < end; ++next) {
      if (!visit(next)) return false;
    }
    next = rank + 1;
  }
  if (!is_inverted) return true;
  for (; next < total; ++next) {
    if (!visit(next)) return false;
  }
  return true;
}

/// Positions of the old elements, class by class, ascending within a class.
template <typename Bits>
std::span<const std::uint16_t> sort_by_class(Kind kind, ByteSpan old_block, unsigned ebase,
                                             const ClassCounts& total, Scratch& scratch) noexcept {
  const std::size_t elements = old_block.size() / sizeof(Bits);
  const std::span<std::uint16_t> positions(scratch.take<std::uint16_t>(elements), elements);
  const ExponentField field = exponent_field(kind);
  ClassCounts next{};
  std::exclusive_scan(total.begin(), total.end(), next.begin(), 0U);
  for (std::size_t i = 0; i < elements; ++i) {
    const unsigned cls = class_of(field.of(load<Bits>(old_block.data() + i * sizeof(Bits))), ebase);
    positions[next[cls]++] = static_cast<std::uint16_t>(i);
  }
  return positions;
}

template <typename Element>
bool make_changes(const XrParts& parts, const ClassCounts& total,
                  std::span<const std::uint16_t> positions, std::span<std::byte> block) noexcept {
  using Bits = typename Element::Bits;
  RankReader ranks(parts);
  DifferenceReader differences(parts, Element::kWidth);
  for (unsigned c = 0; c < kClasses; ++c) {
    const bool is_good = for_each_changed(parts, c, total[c], ranks, [&](std::uint64_t rank) {
      const std::optional<std::uint32_t> difference = differences.next(c);
      if (!difference) return false;
      std::byte* const at = block.data() + positions[rank] * sizeof(Bits);
      store(at, Element::moved(load<Bits>(at), *difference));
      return true;
    });
    if (!is_good) return false;
    positions = positions.subspan(total[c]);
  }
  return differences.at_end();
}

}  // namespace

std::optional<unsigned> ebase_of(ByteSpan coded) noexcept {
  if (coded.size() < 2) return std::nullopt;
  return byte_at(coded, 1);
}

std::optional<XrParts> cut_xr(ByteSpan coded, const ClassCounts& total) noexcept {
  const Mode mode = static_cast<Mode>(coded.front());
  assert(mode == Mode::xr || mode == Mode::xs);
  const std::optional<Header> header =
      mode == Mode::xr ? cut_long_header(coded) : cut_short_header(coded);
  if (!header || header->unary_bytes > header->body.size()) return std::nullopt;

  XrParts parts;
  parts.ebase = header->ebase;
  parts.z = header->z;
  if (!set_counts(*header, total, parts)) return std::nullopt;
  parts.unary = header->body.first(header->unary_bytes);
  parts.rest = header->body.subspan(header->unary_bytes);
  const std::uint64_t codes = std::uint64_t{parts.listed_count} + parts.direct_count +
                              2 * std::uint64_t{parts.exception_count};
  if (!holds_codes(parts.unary, codes) || !set_offsets(mode, parts)) return std::nullopt;
  return parts;
}

bool decode_xr(Kind kind, ByteSpan old_block, ByteSpan coded, std::span<std::byte> new_block,
               Scratch& scratch) noexcept {
  const std::optional<unsigned> ebase = ebase_of(coded);
  if (!ebase) return false;
  const ClassCounts total = count_classes(kind, old_block, *ebase);
  const std::optional<XrParts> parts = cut_xr(coded, total);
  if (!parts) return false;
  return with_element(kind, [&]<typename Element>(Element) {
    const auto positions =
        sort_by_class<typename Element::Bits>(kind, old_block, *ebase, total, scratch);
    copy_block(old_block, new_block);
    return make_changes<Element>(*parts, total, positions, new_block);
  });
}

}  // namespace weightfs::kernels
