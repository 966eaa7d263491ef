// Classes: one pass over the old elements counts their exponents, another gives each change its
// rank; then a counting sort orders the changes by class.
#include <cassert>
#include <numeric>

#include "kernels/block/ordered.hpp"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels {
namespace {

ExponentCounts count_exponents(Kind kind, ByteSpan block) noexcept {
  ExponentCounts counts{};
  const ExponentField field = exponent_field(kind);
  with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    for (std::size_t at = 0; at < block.size(); at += sizeof(Bits)) {
      ++counts[field.of(load<Bits>(block.data() + at))];
    }
  });
  return counts;
}

template <typename Value>
std::span<Value> take(Scratch& scratch, std::size_t count) noexcept {
  return {scratch.take<Value>(count), count};
}

/// The class and rank of each change, in order of position, and both counts of each class.
struct RankedChanges {
  std::span<std::uint8_t> cls;
  std::span<std::uint16_t> rank;
  ClassCounts total{}, changed{};
};

template <typename Bits>
RankedChanges rank_changes(Kind kind, ByteSpan old_block, const Changes& changes, unsigned ebase,
                           Scratch& scratch) noexcept {
  RankedChanges ranked{take<std::uint8_t>(scratch, changes.count),
                       take<std::uint16_t>(scratch, changes.count)};
  const ExponentField field = exponent_field(kind);
  std::size_t number = 0;
  for (std::size_t i = 0; i < old_block.size() / sizeof(Bits); ++i) {
    const unsigned cls = class_of(field.of(load<Bits>(old_block.data() + i * sizeof(Bits))), ebase);
    if (number < changes.count && changes.position[number] == i) {
      ranked.cls[number] = static_cast<std::uint8_t>(cls);
      ranked.rank[number] = static_cast<std::uint16_t>(ranked.total[cls]);
      ++ranked.changed[cls];
      ++number;
    }
    ++ranked.total[cls];
  }
  return ranked;
}

/// The numbers of the changes that are larger than one unit.
std::span<const std::uint16_t> list_exceptions(std::span<const std::int32_t> differences,
                                               Scratch& scratch) noexcept {
  const std::span<std::uint16_t> numbers = take<std::uint16_t>(scratch, differences.size() + 1);
  std::size_t count = 0;
  for (std::size_t i = 0; i < differences.size(); ++i) {
    numbers[count] = static_cast<std::uint16_t>(i);
    count += magnitude(differences[i]) > 1;
  }
  return numbers.first(count);
}

}  // namespace

ClassCounts count_classes(Kind kind, ByteSpan old_block, unsigned ebase) noexcept {
  const ExponentCounts counts = count_exponents(kind, old_block);
  ClassCounts total{};
  for (unsigned exponent = 0; exponent < counts.size(); ++exponent) {
    total[class_of(exponent, ebase)] += counts[exponent];
  }
  return total;
}

unsigned choose_ebase(const ExponentCounts& counts) noexcept {
  const std::uint64_t elements = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  assert(elements > 0);
  unsigned exponent = 0;
  for (std::uint64_t seen = counts[0]; 50 * seen < 49 * elements; seen += counts[exponent]) {
    ++exponent;
  }
  return exponent < kClasses ? 0 : exponent - (kClasses - 1);
}

unsigned choose_ebase(Kind kind, ByteSpan old_block) noexcept {
  return choose_ebase(count_exponents(kind, old_block));
}

ClassedChanges classify(Kind kind, ByteSpan old_block, const Changes& changes, unsigned ebase,
                        Scratch& scratch) noexcept {
  const RankedChanges ranked = with_element(kind, [&]<typename Element>(Element) {
    return rank_changes<typename Element::Bits>(kind, old_block, changes, ebase, scratch);
  });
  const auto rank = take<std::uint16_t>(scratch, changes.count);
  const auto difference = take<std::int32_t>(scratch, changes.count);
  ClassCounts next{};
  std::exclusive_scan(ranked.changed.begin(), ranked.changed.end(), next.begin(), 0U);
  for (std::size_t i = 0; i < changes.count; ++i) {
    const std::uint32_t at = next[ranked.cls[i]]++;
    rank[at] = ranked.rank[i];
    difference[at] = changes.difference[i];
  }
  return {ranked.total, ranked.changed, rank, difference, list_exceptions(difference, scratch)};
}

}  // namespace weightfs::kernels
