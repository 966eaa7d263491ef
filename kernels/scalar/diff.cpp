#include <algorithm>
#include <cassert>

#include "kernels/block/ordered.hpp"
#include "kernels/scalar/scalar.hpp"

namespace weightfs::kernels {

DiffSummary scalar::summarize_diff(Kind kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept {
  assert(old_bytes.size() == new_bytes.size());
  assert(old_bytes.size() % width_bytes(kind) == 0);
  return with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    DiffSummary summary;
    visit_differing_words<Bits>(
        old_bytes, new_bytes, [&](std::size_t, Bits before_bits, Bits after_bits) {
          const std::uint64_t before = Element::ordered(before_bits);
          const std::uint64_t after = Element::ordered(after_bits);
          summary.changed += before != after;
          summary.largest_ulp =
              std::max(summary.largest_ulp, std::max(before, after) - std::min(before, after));
        });
    return summary;
  });
}

}  // namespace weightfs::kernels
