// A block is planned before it is written: the plan has the parameters of each list and the exact
// size of each plane.  So the shorter form is known in advance, and is written once, into memory of
// its size.
//
// A class lists the ranks of its changed members or, if these are more than half, those of the
// others, which are collected once.  The latter are fewer than half the elements of a block.
#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>

#include "kernels/block/bits.hpp"
#include "kernels/scalar/ef.hpp"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels {
namespace {

/// The ranks that a class lists.
struct RankList {
  std::span<const std::uint16_t> ranks;
  unsigned low_bits = 0;
};

/// The parts of a block.  Large (64 KiB): for the stack, once.
struct Plan {
  Plan(Kind kind_of_block, unsigned the_ebase, unsigned the_z,
       const ClassedChanges& classed) noexcept;
  Plan(const Plan&) = delete;  // lists refer to it
  Plan& operator=(const Plan&) = delete;

  Kind kind;
  unsigned ebase, z;
  XrCounts counts{};
  std::array<RankList, kClasses> lists;
  std::uint32_t direct_count = 0;
  std::span<const std::uint16_t> exceptions;  // among the unit changes
  unsigned exception_low_bits = 0;
  std::uint64_t unary_bits = 0, lows_bits = 0, values_bits = 0;

 private:
  void make_lists(const ClassedChanges& classed) noexcept;
  void add_up(const ClassedChanges& classed) noexcept;

  std::array<std::uint16_t, kBlockElements / 2> unchanged_;  // ranks of unchanged members
};

/// The ranks below `total` that are not in `changed`, stored at `to`.
/// Requires: room for one more.
std::span<const std::uint16_t> list_unchanged(std::span<const std::uint16_t> changed,
                                              std::uint32_t total, std::uint16_t* to) noexcept {
  std::size_t count = 0;
  std::size_t passed = 0;
  for (std::uint32_t rank = 0; rank < total; ++rank) {
    const bool is_changed = passed < changed.size() && changed[passed] == rank;
    to[count] = static_cast<std::uint16_t>(rank);
    count += !is_changed;
    passed += is_changed;
  }
  return {to, count};
}

/// Calls visit(gap, low_bits) for each listed rank.
template <typename Visit>
void for_each_gap(const Plan& plan, Visit&& visit) {
  for (const RankList& list : plan.lists) {
    std::uint32_t next = 0;
    for (const std::uint32_t rank : list.ranks) {
      visit(rank - next, list.low_bits);
      next = rank + 1;
    }
  }
}

/// Calls visit(gap) for each exception.
template <typename Visit>
void for_each_exception_gap(const Plan& plan, Visit&& visit) {
  std::uint32_t next = plan.direct_count;
  for (const std::uint32_t number : plan.exceptions) {
    visit(number - next);
    next = number + 1;
  }
}

/// Calls visit(v, b, s) for the Exp-Golomb code of each direct change, then of each exception.
template <typename Visit>
void for_each_value(const Plan& plan, std::span<const std::int32_t> differences, Visit&& visit) {
  const auto visit_code = [&](std::uint32_t v, unsigned order) {
    visit(v, static_cast<unsigned>(std::bit_width(v)) - 1, order);
  };
  const auto width = static_cast<unsigned>(8 * width_bytes(plan.kind));
  std::size_t i = 0;
  for (unsigned c = 0; i < plan.direct_count; ++c) {
    const unsigned order = direct_order(width, plan.z, c);
    for (const std::size_t end = i + plan.counts[c]; i < end; ++i) {
      visit_code(magnitude(differences[i]) - 1 + (1U << order), order);
    }
  }
  for (const std::uint16_t number : plan.exceptions) {
    visit_code(magnitude(differences[number]) - 1, 0);
  }
}

Plan::Plan(Kind kind_of_block, unsigned the_ebase, unsigned the_z,
           const ClassedChanges& classed) noexcept
    : kind(kind_of_block), ebase(the_ebase), z(the_z) {
  std::copy(classed.changed.begin(), classed.changed.end(), counts.begin());
  make_lists(classed);
  direct_count = std::accumulate(counts.begin(), counts.begin() + std::min(z, kClasses), 0U);
  const auto first_unit =
      std::lower_bound(classed.exception.begin(), classed.exception.end(), direct_count);
  exceptions = {first_unit, classed.exception.end()};
  counts.back() = static_cast<std::uint32_t>(exceptions.size());
  exception_low_bits = rice(classed.rank.size() - direct_count, exceptions.size());
  add_up(classed);
}

void Plan::make_lists(const ClassedChanges& classed) noexcept {
  std::span<const std::uint16_t> ranks = classed.rank;
  std::uint16_t* free = unchanged_.data();
  for (unsigned c = 0; c < kClasses; ++c) {
    const std::uint32_t total = classed.total[c];
    lists[c].ranks = ranks.first(classed.changed[c]);
    ranks = ranks.subspan(classed.changed[c]);
    if (2 * classed.changed[c] > total) {
      lists[c].ranks = list_unchanged(lists[c].ranks, total, free);
      free += lists[c].ranks.size();
    }
    lists[c].low_bits = rice(total, lists[c].ranks.size());
  }
}

void Plan::add_up(const ClassedChanges& classed) noexcept {
  for_each_gap(*this, [&](std::uint32_t gap, unsigned low_bits) {
    unary_bits += (gap >> low_bits) + 1;
    lows_bits += low_bits;
  });
  for_each_exception_gap(*this, [&](std::uint32_t gap) {
    unary_bits += (gap >> exception_low_bits) + 1;
    lows_bits += exception_low_bits;
  });
  for_each_value(*this, classed.difference, [&](std::uint32_t, unsigned bits, unsigned order) {
    unary_bits += bits - order + 1;
    values_bits += bits;
  });
}

/// How the counts are written: the width of the fields in XR, or the order of the codes in XS.
struct CountsForm {
  unsigned parameter = 0;
  std::uint64_t bits = 0;
};

CountsForm long_counts(const XrCounts& counts) noexcept {
  const auto width =
      static_cast<unsigned>(std::bit_width(*std::max_element(counts.begin(), counts.end())));
  return {width, counts.size() * width};
}

CountsForm short_counts(const XrCounts& counts) noexcept {
  CountsForm best{0, ~std::uint64_t{0}};
  for (unsigned order = 0; order < 16 && counts.size() * (order + 1) < best.bits; ++order) {
    std::uint64_t bits = 0;
    for (const std::uint32_t count : counts) {
      bits += 2 * static_cast<unsigned>(std::bit_width(count + (1U << order))) - 1 - order;
    }
    if (bits < best.bits) best = {order, bits};
  }
  return best;
}

/// A plan in one of the two modes.
struct Form {
  Mode mode;
  CountsForm counts;
  std::uint64_t bytes;
};

std::optional<Form> long_form(const Plan& plan, std::size_t changes) noexcept {
  if (plane_bytes(plan.unary_bits) > kUnaryBytesMax) return std::nullopt;
  return Form{Mode::xr, long_counts(plan.counts),
              long_header_bytes(plan.counts) + plane_bytes(plan.unary_bits) + plane_bytes(changes) +
                  plane_bytes(plan.lows_bits) + plane_bytes(plan.values_bits)};
}

std::optional<Form> short_form(const Plan& plan, std::size_t changes) noexcept {
  if (plane_bytes(plan.unary_bits) > kShortUnaryBytesMax || plan.z > kShortZMax) {
    return std::nullopt;
  }
  const CountsForm counts = short_counts(plan.counts);
  return Form{Mode::xs, counts,
              4 + plane_bytes(counts.bits) + plane_bytes(plan.unary_bits) +
                  plane_bytes(changes + plan.lows_bits + plan.values_bits)};
}

std::optional<Form> shorter_form(const Plan& plan, std::size_t changes) noexcept {
  const std::optional<Form> xs = short_form(plan, changes);
  const std::optional<Form> xr = long_form(plan, changes);
  return xs && (!xr || xs->bytes < xr->bytes) ? xs : xr;
}

void write_short_header(const Plan& plan, unsigned order, BitWriter& writer) noexcept {
  writer.put(static_cast<std::uint64_t>(Mode::xs), 8);
  writer.put(plan.ebase, 8);
  writer.put(plane_bytes(plan.unary_bits), 8);
  writer.put(plan.z | order << 4, 8);
  for (const std::uint32_t count : plan.counts) {
    const std::uint32_t v = count + (1U << order);
    assert(v != 0);  // a block has far fewer elements
    const auto bits = static_cast<unsigned>(std::bit_width(v)) - 1;
    writer.put_unary(bits - order);
    writer.put(v ^ (1U << bits), bits);
  }
  writer.end_plane();
}

void write_unary(const Plan& plan, const ClassedChanges& classed, BitWriter& writer) noexcept {
  for_each_gap(plan,
               [&](std::uint32_t gap, unsigned low_bits) { writer.put_unary(gap >> low_bits); });
  for_each_exception_gap(
      plan, [&](std::uint32_t gap) { writer.put_unary(gap >> plan.exception_low_bits); });
  for_each_value(plan, classed.difference, [&](std::uint32_t, unsigned bits, unsigned order) {
    writer.put_unary(bits - order);
  });
  writer.end_plane();
}

void write_signs(std::span<const std::int32_t> differences, BitWriter& writer) noexcept {
  constexpr std::size_t kStep = 32;
  while (!differences.empty()) {
    const std::size_t count = std::min(kStep, differences.size());
    std::uint64_t signs = 0;
    for (std::size_t i = 0; i < count; ++i) signs |= std::uint64_t{differences[i] < 0} << i;
    writer.put(signs, static_cast<unsigned>(count));
    differences = differences.subspan(count);
  }
}

void write_lows(const Plan& plan, BitWriter& writer) noexcept {
  const auto put_low = [&](std::uint32_t gap, unsigned width) {
    writer.put(gap & ((1U << width) - 1), width);
  };
  for_each_gap(plan, put_low);
  for_each_exception_gap(plan, [&](std::uint32_t gap) { put_low(gap, plan.exception_low_bits); });
}

void append(const Plan& plan, const Form& form, const ClassedChanges& classed,
            std::vector<std::byte>& coded) {
  const std::size_t begin = coded.size();
  coded.resize(begin + form.bytes + kBitWriterSlack);
  BitWriter writer(coded.data() + begin);
  const bool is_padded = form.mode == Mode::xr;
  if (is_padded) {
    write_long_header({plan.ebase, plan.z, plane_bytes(plan.unary_bits), plan.counts}, writer);
  } else {
    write_short_header(plan, form.counts.parameter, writer);
  }
  write_unary(plan, classed, writer);
  write_signs(classed.difference, writer);
  if (is_padded) writer.end_plane();
  write_lows(plan, writer);
  if (is_padded) writer.end_plane();
  for_each_value(plan, classed.difference, [&](std::uint32_t v, unsigned bits, unsigned) {
    writer.put(v ^ (1U << bits), bits);
  });
  writer.end_plane();
  coded.resize(begin + form.bytes);
}

}  // namespace

std::uint64_t long_header_bytes(const XrCounts& counts) noexcept {
  return 6 + plane_bytes(long_counts(counts).bits);
}

void write_long_header(const XrHeader& header, BitWriter& writer) noexcept {
  const unsigned width = long_counts(header.counts).parameter;
  writer.put(static_cast<std::uint64_t>(Mode::xr), 8);
  writer.put(header.ebase, 8);
  writer.put(header.unary_bytes, 16);
  writer.put(header.z, 8);
  writer.put(width, 8);
  for (const std::uint32_t count : header.counts) writer.put(count, width);
  writer.end_plane();
}

void append_raw(ByteSpan block, std::vector<std::byte>& coded) {
  coded.push_back(static_cast<std::byte>(Mode::raw));
  coded.insert(coded.end(), block.begin(), block.end());
}

bool encode_xr(Kind kind, Mode mode, unsigned ebase, unsigned z, const ClassedChanges& classed,
               std::size_t bytes_max, std::vector<std::byte>& coded) {
  assert(mode == Mode::xr || mode == Mode::xs);
  assert(ebase < 256 && z <= kZMax);
  const Plan plan(kind, ebase, z, classed);
  const std::size_t changes = classed.rank.size();
  const std::optional<Form> form =
      mode == Mode::xr ? long_form(plan, changes) : short_form(plan, changes);
  if (!form || form->bytes > bytes_max) return false;
  append(plan, *form, classed, coded);
  return true;
}

void encode_best(Kind kind, ByteSpan new_block, unsigned ebase, const Changes& changes,
                 const ClassedChanges& classed, std::vector<std::byte>& coded) {
  const Plan plan(kind, ebase, choose_z(kind, classed), classed);
  const std::optional<Form> form = shorter_form(plan, changes.count);
  const auto saves_an_eighth = [&](std::uint64_t bytes) {
    return kernels::saves_an_eighth(bytes, new_block);
  };

  const std::size_t begin = coded.size();
  const std::uint64_t ef_bytes_max = form ? 16 * form->bytes / 15 : ~std::uint64_t{0};
  if (encode_ef(changes, new_block.size() / width_bytes(kind), ef_bytes_max, coded)) {
    if (saves_an_eighth(coded.size() - begin)) return;
    coded.resize(begin);
    append_raw(new_block, coded);
  } else if (form && saves_an_eighth(form->bytes)) {
    append(plan, *form, classed, coded);
  } else {
    append_raw(new_block, coded);
  }
}

}  // namespace weightfs::kernels
