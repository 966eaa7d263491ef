// How z is chosen: by the exact size of the values for z = 0, 1, 2, ...
//
// A direct change of size a + 1 takes 2 b - s + 1 bits at order s, b = floor(log2(a + 2^s)).  With
// t = floor(log2 a) and u the lowest order at which a + 2^s reaches 2^(t + 1),
//
//     b = t     for s < u
//     b = t + 1 for u <= s <= t
//     b = s     for s > t, and for a = 0
//
// so two histograms of a class, of t and of u, give the size of all its codes at every order.  As z
// grows, the order of each class does, and only counters are moved.  An exception takes 2 t + 1
// bits and its part of a Rice code of the gaps, which is added up anew for each z: below z = 12
// only, as there are no exceptions from there on.
//
// A direct change takes at least s + 1 bits.  That bound grows with z, so once it reaches the best
// size found the search is over: after a few steps in a sparse block.
//
// Internal to kernels/.  Threads: values.
#pragma once

#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/block/bits.hpp"
#include "kernels/scalar/xr.hpp"

namespace weightfs::kernels {

/// The values of one class, as direct changes at an order that begins with 0.
class ClassValues {
 public:
  static constexpr std::size_t kLengths = 32;

  void set_count(std::uint32_t count) noexcept { count_ = count; }

  /// Adds a change of size a + 1, a > 0; those of size 1 need not be added.
  void add(std::uint32_t a) noexcept {
    assert(a > 0);
    const auto t = static_cast<unsigned>(std::bit_width(a)) - 1;
    const auto ones = static_cast<unsigned>(std::countl_one(a << (31 - t)));
    add(t, t + 1 - ones, 1);
  }
  /// The same for `count` changes of these t and u.
  void add(unsigned t, unsigned u, std::uint32_t count) noexcept {
    by_t_[t] += count;
    by_u_[u] += count;
    above_ += count;
    above_t_ += std::uint64_t{t} * count;
    carried_ += u == 0 ? count : 0;
  }

  void raise_order() noexcept {
    above_ -= by_t_[order_];
    above_t_ -= std::uint64_t{order_} * by_t_[order_];
    carried_ -= by_t_[order_];
    ++order_;
    carried_ += by_u_[order_];
  }

  [[nodiscard]] unsigned order() const noexcept { return order_; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }

  /// Bits of all codes, in U and Q.
  [[nodiscard]] std::uint64_t bits() const noexcept {
    const std::uint64_t b = above_t_ + carried_ + std::uint64_t{order_} * (count_ - above_);
    return 2 * b + count_ - std::uint64_t{order_} * count_;
  }
  [[nodiscard]] std::uint64_t least_bits() const noexcept {
    return (std::uint64_t{order_} + 1) * count_;
  }

  /// Bits of the values as those of exceptions.
  /// Requires: the order was not raised.
  [[nodiscard]] std::uint64_t exception_bits() const noexcept { return 2 * above_t_ + above_; }

 private:
  unsigned order_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t above_ = 0;    // changes with t >= order
  std::uint64_t above_t_ = 0;  // sum of their t
  std::uint32_t carried_ = 0;  // how many of them have u <= order
  std::array<std::uint32_t, kLengths> by_t_{}, by_u_{};
};

/// What the choice of z depends on.
struct Values {
  std::array<ClassValues, kClasses> of_class;            // counts are set, exceptions added
  std::array<std::uint32_t, kClasses> exceptions_end{};  // index in `exceptions`, for each class
  std::span<const std::uint16_t> exceptions;             // numbers, ascending
};

/// Sizes at a z that begins with 0.  SumHighs(numbers, next, low_bits) adds up gap >> low_bits of
/// ascending numbers, of which the first one's gap begins at `next`.
template <typename SumHighs>
class ValueSizes {
 public:
  ValueSizes(Kind kind, Values& values, SumHighs sum_highs) noexcept
      : order_max_(static_cast<unsigned>(8 * width_bytes(kind)) - 1),
        exceptions_(values.exceptions),
        values_(values.of_class),
        exceptions_end_(values.exceptions_end),
        sum_highs_(sum_highs) {
    for (const ClassValues& of_class : values_) {
      exception_bits_ += of_class.exception_bits();
      unit_count_ += of_class.count();
    }
  }

  [[nodiscard]] std::uint64_t bits() const noexcept {
    std::uint64_t sum = exception_bits_ + gap_bits();
    for (unsigned c = 0; c < direct_classes_; ++c) sum += values_[c].bits();
    return sum;
  }

  [[nodiscard]] std::uint64_t least_bits() const noexcept {
    std::uint64_t sum = 0;
    for (unsigned c = 0; c < direct_classes_; ++c) sum += values_[c].least_bits();
    return sum;
  }

  void raise_z() noexcept {
    for (unsigned c = 0; c < direct_classes_; ++c) {
      if (values_[c].order() < order_max_) values_[c].raise_order();
    }
    if (direct_classes_ == kClasses) return;
    const ClassValues& values = values_[direct_classes_];
    exception_bits_ -= values.exception_bits();
    first_unit_ += values.count();
    unit_count_ -= values.count();
    exceptions_begin_ = exceptions_end_[direct_classes_];
    ++direct_classes_;
  }

 private:
  /// Bits of the exceptions' gaps, in U and L.
  [[nodiscard]] std::uint64_t gap_bits() const noexcept {
    const auto numbers = exceptions_.subspan(exceptions_begin_);
    if (numbers.empty()) return 0;
    const unsigned low_bits = rice(unit_count_, numbers.size());
    const std::uint64_t sum = (std::uint64_t{low_bits} + 1) * numbers.size();
    if (low_bits == 0) return sum + (numbers.back() + 1 - first_unit_ - numbers.size());
    return sum + sum_highs_(numbers, first_unit_, low_bits);
  }

  unsigned order_max_;
  std::span<const std::uint16_t> exceptions_;
  std::array<ClassValues, kClasses>& values_;
  const std::array<std::uint32_t, kClasses>& exceptions_end_;
  SumHighs sum_highs_;
  unsigned direct_classes_ = 0;
  std::uint64_t exception_bits_ = 0;  // of the values of all other classes
  std::uint32_t first_unit_ = 0, unit_count_ = 0, exceptions_begin_ = 0;
};

/// The z that the encoder takes: see choose_z() in kernels/scalar/xr.hpp.  Raises the orders.
template <typename SumHighs>
unsigned choose_z_of(Kind kind, Values& values, SumHighs sum_highs) noexcept {
  const auto end = static_cast<unsigned>(kClasses + 8 * width_bytes(kind));
  ValueSizes<SumHighs> sizes(kind, values, sum_highs);
  std::uint64_t fewest = sizes.bits();
  unsigned best = 0;
  for (unsigned z = 1; z < end; ++z) {
    sizes.raise_z();
    if (sizes.least_bits() >= fewest) break;
    const std::uint64_t bits = sizes.bits();
    if (bits < fewest) {
      fewest = bits;
      best = z;
    }
  }
  return best;
}

}  // namespace weightfs::kernels
