// PatchReader: the patches of chunks along a path, in ascending order of places.
//
// It reads each span of the path once, in pages, so one pass over all chunks costs what the spans
// have in bytes.  Several readers may divide the chunks between them.
//
// A chunk without a patch is taken to be unchanged.  So whoever makes a version that others read
// compares all its chunks with the hashes that its manifest vouches for, not only those that have
// patches.
//
// Memory: `page_bytes` for each span of the path, or one patch where that is larger.
// Threads: one thread at a time.  Ownership: keeps the reference to the table, copies the path.
// Errors: Error not_found if a span is gone (look for another path), corrupt (names the patch), io.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kernels/block/scratch.hpp"
#include "store/patches/patch_path.hpp"
#include "store/patches/patch_table.hpp"

namespace weightfs {

inline constexpr std::size_t kPatchPageBytes = 1u << 20;

/// Patches of one span, ascending.
class PatchCursor {
 public:
  PatchCursor(const PatchTable& table, const SpanInfo& span, ChunkPlace from,
              std::size_t page_bytes = kPatchPageBytes);

  /// The place of the patch that the cursor is at; nullopt at the end.
  [[nodiscard]] std::optional<ChunkPlace> place();
  /// That patch; the cursor goes on.  Requires: it is not at the end.
  ChunkPatch take();
  /// Goes on to the first patch at or above `place`; stays if it is there or beyond.
  void skip_to(ChunkPlace place);

 private:
  const PatchTable* table_;
  SpanInfo span_;
  ChunkPlace from_;  // where the next page begins
  std::size_t page_bytes_;
  PatchTable::Page page_;
  std::size_t at_ = 0;  // in page_
};

class PatchReader {
 public:
  /// Begins at `from`.
  PatchReader(const PatchTable& table, const PatchPath& path, ChunkPlace from = {},
              std::size_t page_bytes = kPatchPageBytes);

  /// The patches of a chunk in the order in which they are applied, inverted where the path goes
  /// back; none if no span of the path has one.
  /// Requires: places ascend from call to call.
  std::vector<ChunkPatch> take(ChunkPlace place, kernels::Scratch& scratch);

  /// The next place, at or above all that were taken, that has a patch; nullopt: there is none.
  [[nodiscard]] std::optional<ChunkPlace> next_place();

 private:
  struct Step {
    PatchCursor cursor;
    PathStep step;
  };
  std::vector<Step> steps_;
};

/// The same of one chunk alone.
std::vector<ChunkPatch> read_chunk_patches(const PatchTable& table, const PatchPath& path,
                                           ChunkPlace place, kernels::Scratch& scratch);

}  // namespace weightfs
