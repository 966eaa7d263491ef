#include "kernels/scalar/xr_values.hpp"

namespace weightfs::kernels {
namespace {

std::uint64_t sum_highs(std::span<const std::uint16_t> numbers, std::uint32_t next,
                        unsigned low_bits) noexcept {
  std::uint64_t sum = 0;
  for (const std::uint32_t number : numbers) {
    sum += (number - next) >> low_bits;
    next = number + 1;
  }
  return sum;
}

}  // namespace

unsigned choose_z(Kind kind, const ClassedChanges& classed) noexcept {
  Values values;
  values.exceptions = classed.exception;
  std::size_t next = 0;
  std::uint32_t end = 0;
  for (unsigned c = 0; c < kClasses; ++c) {
    values.of_class[c].set_count(classed.changed[c]);
    end += classed.changed[c];
    for (; next < classed.exception.size() && classed.exception[next] < end; ++next) {
      values.of_class[c].add(magnitude(classed.difference[classed.exception[next]]) - 1);
    }
    values.exceptions_end[c] = static_cast<std::uint32_t>(next);
  }
  return choose_z_of(kind, values, sum_highs);
}

}  // namespace weightfs::kernels
