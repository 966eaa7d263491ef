#include "kernels/dispatch/diff.hpp"

#include "kernels/dispatch/variant_table.hpp"

namespace weightfs::kernels {

DiffSummary summarize_diff(Kind kind, ByteSpan old_bytes, ByteSpan new_bytes) noexcept {
  return chosen_variant().summarize_diff(kind, old_bytes, new_bytes);
}

}  // namespace weightfs::kernels
