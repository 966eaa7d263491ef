#include "kernels/block/changes.hpp"

#include "kernels/block/ordered.hpp"

namespace weightfs::kernels {

void find_changes(Kind kind, ByteSpan old_block, ByteSpan new_block, Changes& changes) noexcept {
  with_element(kind, [&]<typename Element>(Element) {
    using Bits = typename Element::Bits;
    std::size_t count = 0;
    visit_differing_words<Bits>(old_block, new_block,
                                [&](std::size_t index, Bits before, Bits after) {
                                  changes.position[count] = static_cast<std::uint16_t>(index);
                                  count += before != after;
                                });
    std::size_t exception_count = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = changes.position[i] * sizeof(Bits);
      const std::int32_t difference =
          Element::difference(load<Bits>(old_block.data() + at), load<Bits>(new_block.data() + at));
      changes.difference[i] = difference;
      changes.exception[exception_count] = static_cast<std::uint16_t>(i);
      exception_count += magnitude(difference) > 1;
    }
    changes.count = count;
    changes.exception_count = exception_count;
  });
}

}  // namespace weightfs::kernels
