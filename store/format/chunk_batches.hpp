// Chunk batches: cuts the chunks of a layout into runs of consecutive ones, the pieces of work that
// publish hands to its threads.  A run is large enough that a model with 70,000 tiny tensors does
// not become 70,000 pieces of work, and small enough that the results of a few fit into memory.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "store/format/chunk_place.hpp"
#include "store/format/layout.hpp"

namespace weightfs {

/// A run of chunks, consecutive in the version.
struct ChunkBatch {
  std::uint64_t first_chunk = 0;  // of the version
  std::vector<ChunkPlace> places;
  std::uint64_t size_bytes = 0;
};

/// A set of files of a layout, by index; if it is shorter than the layout, the other files are not
/// in it.
using FileSet = std::vector<bool>;

inline bool contains(const FileSet& files, std::uint32_t file) noexcept {
  return file < files.size() && files[file];
}

/// All chunks of `layout` in order, except those of the files in `without`.  A batch ends with the
/// first chunk that makes it reach `target_bytes`, and before a file that is left out.
std::vector<ChunkBatch> chunk_batches(const Layout& layout, std::uint64_t target_bytes,
                                      const FileSet& without = {});

}  // namespace weightfs
