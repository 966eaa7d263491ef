#include "store/patches/patch_span.hpp"

#include <fmt/format.h>

namespace weightfs {

std::string_view to_string(PatchLevel level) noexcept {
  switch (level) {
    case PatchLevel::one:
      return "1";
    case PatchLevel::eight:
      return "8";
    case PatchLevel::sixty_four:
      return "64";
    case PatchLevel::cumulative:
      return "cumulative";
  }
  return "?";
}

std::string to_string(const PatchSpan& span) {
  return fmt::format("{}..{} (level {})", span.first, span.last, to_string(span.level));
}

std::string to_string(ChunkPlace place) {
  return fmt::format("tensor {}, chunk {}", place.tensor, place.chunk);
}

}  // namespace weightfs
