// PatchParts: what the variants of the patch operations share.  Internal to kernels/.
//
// Format: docs/FORMAT.md, "Patches".
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/changes.hpp"

namespace weightfs::kernels {

inline constexpr std::size_t kDiffHeaderBytes = 1;

/// Bytes of the DIFF block of `elements` elements, which no patch exceeds.
constexpr std::size_t diff_bytes(Kind kind, std::size_t elements) noexcept {
  return kDiffHeaderBytes + elements * width_bytes(kind);
}

/// The longest EF block that is preferred to DIFF.
constexpr std::size_t ef_patch_bytes_max(Kind kind, std::size_t elements) noexcept {
  return 7 * diff_bytes(kind, elements) / 8;
}

/// The mode of a patch: same, ef or diff.  `same` and `diff` are then well formed; an EF block is
/// checked by its reader.
///
/// Returns: nullopt if it is malformed.
std::optional<Mode> mode_of_patch(Kind kind, std::size_t elements, ByteSpan patch) noexcept;

/// Replaces `changes` with those of a patch of a block of `elements` elements.
///
/// Returns: false if it is malformed; `changes` is then undefined.
[[nodiscard]] bool read_patch(Kind kind, std::size_t elements, ByteSpan patch,
                              Changes& changes) noexcept;

/// Appends the canonical patch for these changes.
void append_patch(Kind kind, std::size_t elements, const Changes& changes,
                  std::vector<std::byte>& patch);

}  // namespace weightfs::kernels
