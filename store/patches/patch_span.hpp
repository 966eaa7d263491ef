// PatchSpan: the versions that a set of patches leads over, and what is known of the set.
//
// A span holds a patch for each chunk that differs between its two versions, and nothing for the
// others.  Level `one` is what was taken when a version came; the others are folded from it:
//
//     cumulative   |---------------------- base .. 128 ----------------------|
//     sixty_four   |------- 0 .. 64 -------|------- 64 .. 128 -------|
//     eight                                          ... | 112 .. 120 | 120 .. 128 |
//     one                                                         ... | 126 .. 127 | 127 .. 128 |
//
// A version is named by its number and by the SHA-256 of its manifest, since a repository that was
// made anew counts from 1 again: spans of the old one must not lead to versions of the new one.
//
// Invariants
//   * first < last.  Versions of a span have one tensor table: a span never crosses a change of it.
//   * (level, last) names a span of a store: there are no two.
//
// Threads: values.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/sha256.hpp"
#include "store/format/chunk_place.hpp"
#include "store/patches/tensor_table_id.hpp"

namespace weightfs {

/// The values are those of the records.
enum class PatchLevel : std::uint8_t { one = 0, eight = 1, sixty_four = 2, cumulative = 3 };

/// "1", "8", "64", "cumulative".
std::string_view to_string(PatchLevel level) noexcept;

/// A version, and which one of this number.
struct PatchVersion {
  std::uint64_t version = 0;
  Sha256 manifest{};  // SHA-256 of its manifest

  auto operator<=>(const PatchVersion&) const = default;
};

/// What names a span.
struct PatchSpan {
  PatchLevel level{};
  std::uint64_t first = 0, last = 0;

  auto operator<=>(const PatchSpan&) const = default;
};

/// "7..8 (level 1)": for messages.
std::string to_string(const PatchSpan& span);

/// What a span leads over: all that must be known before its patches are.
struct SpanEnds {
  PatchLevel level{};
  PatchVersion first, last;
  TensorTableId table{};  // of both versions

  [[nodiscard]] PatchSpan span() const noexcept { return {level, first.version, last.version}; }
  bool operator==(const SpanEnds&) const = default;
};

/// A span that is there.
struct SpanInfo {
  SpanEnds ends;
  std::uint64_t chunk_count = 0;  // that differ
  std::uint64_t size_bytes = 0;   // of the files that hold the patches

  [[nodiscard]] PatchSpan span() const noexcept { return ends.span(); }
  bool operator==(const SpanInfo&) const = default;
};

/// "tensor 3, chunk 5": for messages.
std::string to_string(ChunkPlace place);

}  // namespace weightfs
