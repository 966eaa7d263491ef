#include "kernels/dispatch/patch.hpp"

#include <algorithm>
#include <cstdint>

#include "kernels/dispatch/variant_table.hpp"
#include "kernels/scalar/patch_parts.hpp"

namespace weightfs::kernels {

std::size_t make_patch(Kind kind, ByteSpan old_block, ByteSpan new_block, Scratch& scratch,
                       std::vector<std::byte>& patch) {
  return chosen_variant().make_patch(kind, old_block, new_block, scratch, patch);
}

bool apply_patch(Kind kind, ByteSpan patch, std::span<std::byte> block, Scratch& scratch) noexcept {
  return chosen_variant().apply_patch(kind, patch, block, scratch);
}

bool fold_patches(Kind kind, std::size_t elements, std::span<const ByteSpan> patches,
                  Scratch& scratch, std::vector<std::byte>& folded) {
  return chosen_variant().fold_patches(kind, elements, patches, scratch, folded);
}

bool invert_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                  std::vector<std::byte>& inverse) {
  return chosen_variant().invert_patch(kind, elements, patch, scratch, inverse);
}

bool summarize_patch(Kind kind, std::size_t elements, ByteSpan patch, Scratch& scratch,
                     DiffSummary& summary) {
  scratch.reset();
  Changes& changes = scratch.take_changes();
  if (!read_patch(kind, elements, patch, changes)) return false;
  summary = {.changed = changes.count, .largest_ulp = 0};
  for (std::size_t i = 0; i < changes.count; ++i) {
    summary.largest_ulp =
        std::max<std::uint64_t>(summary.largest_ulp, magnitude(changes.difference[i]));
  }
  return true;
}

bool patch_of_log(Kind kind, std::size_t elements, ByteSpan log, Scratch& scratch,
                  std::vector<std::byte>& patch) {
  return chosen_variant().patch_of_log(kind, elements, log, scratch, patch);
}

}  // namespace weightfs::kernels
