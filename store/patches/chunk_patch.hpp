// ChunkPatch: the change of one chunk between two versions, independent of the chunk's bytes.
//
// It is a patch for each block (kernels/dispatch/patch.hpp), with the hashes of the chunk before
// and after.  Patches add and invert:
//
//     apply(make(a, b), a) == b
//     merge(make(a, b), make(b, c)) == make(a, c), byte for byte; nothing if a == c
//     invert(make(a, b)) == make(b, a)
//
// so a chain of versions can be folded without their bytes, and the result does not depend on what
// it was folded from.
//
// The stored form (docs/FORMAT.md, "Patches of a store") carries a checksum over itself and its
// key.  It is read as untrusted: sizes are checked before anything is allocated.
//
// Memory: a ChunkPatch is at most a chunk and some bytes for each block (4 MiB).
// Threads: pure functions; a Scratch belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/change_log.hpp"
#include "kernels/block/chunk_coder.hpp"
#include "kernels/block/diff_summary.hpp"
#include "kernels/block/scratch.hpp"
#include "store/base/bytes.hpp"

namespace weightfs {

struct ChunkPatch {
  kernels::Kind kind{};
  std::uint32_t size_bytes = 0;  // of the chunk: 1 .. kernels::chunk_bytes(kind), whole elements
  std::uint64_t hash_before = 0, hash_after = 0;  // XXH3-64 of the chunk
  /// Of the patch of each block, 0: it did not change.  Those beyond the chunk are 0.
  std::array<std::uint32_t, kernels::kChunkBlocks> lengths{};
  Bytes patches;  // of all blocks, one behind the other

  bool operator==(const ChunkPatch&) const = default;
};

/// The patch from the old bytes of a chunk to the new ones; nullopt if they are equal.
///
/// Requires: the same size, a whole number of elements, at least one and at most a chunk.
std::optional<ChunkPatch> make_chunk_patch(kernels::Kind kind, kernels::ByteSpan old_chunk,
                                           kernels::ByteSpan new_chunk, kernels::Scratch& scratch);

/// The same, if the caller knows the hashes already.
std::optional<ChunkPatch> make_chunk_patch(kernels::Kind kind, kernels::ByteSpan old_chunk,
                                           kernels::ByteSpan new_chunk, std::uint64_t hash_before,
                                           std::uint64_t hash_after, kernels::Scratch& scratch);

/// The same of what a decoder noted.  nullopt: nothing changed, or the log is not one of such a
/// chunk.
std::optional<ChunkPatch> chunk_patch_of_log(kernels::Kind kind, std::uint32_t size_bytes,
                                             std::uint64_t hash_before, std::uint64_t hash_after,
                                             const kernels::ChangeLog& log,
                                             kernels::Scratch& scratch);

/// The sum of patches of one chunk, oldest first; nullopt if nothing remains of them.
///
/// Requires: at least one patch.
/// Throws Error: corrupt if one does not begin where the one before it ends, they are not of one
/// kind and size, a block's patch is malformed, or sum and hashes disagree whether there is a
/// change; `what` begins the message.
std::optional<ChunkPatch> merge_chunk_patches(std::span<const ChunkPatch> patches,
                                              kernels::Scratch& scratch, std::string_view what);

/// The same of several chunks in one call of the coder: result i is the sum of chunks[i].
///
/// `what(i)` begins a message about it.
std::vector<std::optional<ChunkPatch>> merge_chunk_patches(
    std::span<const std::vector<ChunkPatch>> chunks, kernels::ChunkCoder& coder,
    kernels::Scratch& scratch, const std::function<std::string(std::size_t)>& what);

/// The patch that goes back.  Throws Error: corrupt, as above.
ChunkPatch invert_chunk_patch(const ChunkPatch& patch, kernels::Scratch& scratch,
                              std::string_view what);

/// Applies patches of one chunk, oldest first, in place, and compares the last hash.
///
/// Without patches nothing is done, and nothing compared.  Bytes that are not those that the first
/// patch was made for are found by the last hash: whoever wants to know which of the two is
/// damaged compares hash_before first (kernels/dispatch/hash.hpp).
/// Throws Error: corrupt, as merge_chunk_patches(), or another hash; the chunk is then undefined.
void apply_chunk_patches(std::span<const ChunkPatch> patches, kernels::Kind kind,
                         std::span<std::byte> chunk, kernels::Scratch& scratch,
                         std::string_view what);

/// What the patch changes: as kernels::summarize_patch().  Throws Error: corrupt, as above.
kernels::DiffSummary summarize_chunk_patch(const ChunkPatch& patch, kernels::Scratch& scratch,
                                           std::string_view what);

// ---- the stored form ----

/// `first_version`: of the span.  `key`: under which it will lie; the checksum covers it.
std::string encode_chunk_patch(const ChunkPatch& patch, std::uint64_t first_version,
                               std::string_view key);

/// Throws Error: corrupt, "WHAT: ...", if it is malformed, its checksum is wrong, or it begins at
/// another version.  The blocks' patches are not looked into.
ChunkPatch decode_chunk_patch(std::string_view value, std::uint64_t first_version,
                              std::string_view key, std::string_view what);

}  // namespace weightfs
