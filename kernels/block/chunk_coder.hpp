// ChunkCoder: encodes and decodes chunks, and adds up patches, in batches, on the CPU or on a GPU.
// The store's interface.
//
// A batch is what one thread of the store has in hand, a few megabytes.  The CPU processes it chunk
// by chunk, in cache; the GPU gets it in one transfer.
//
//     EncodeJob   old, new          --> lengths, coded, changed, both hashes, checked by decoding
//     DecodeJob   old, coded steps  --> new, hash
//     FoldJob     patches           --> their sum
//
// Threads: all calls may be made from any number of threads concurrently.  Ownership:
// jobs refer to the caller's memory, which must outlive the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/block/block.hpp"
#include "kernels/block/change_log.hpp"

namespace weightfs::kernels {

/// One chunk to be encoded against its old bytes.
struct EncodeJob {
  Kind kind = Kind::u8;
  ByteSpan old_chunk, new_chunk;  // the same size, a multiple of the width, at most one chunk
  ChangeLog* log = nullptr;       // gets what changes, if it is verified; nullptr: nobody asks

  // Results; previous contents are replaced.
  std::vector<std::uint32_t> lengths;  // one for each block, 0 = unchanged
  std::vector<std::byte> coded;        // the blocks back to back
  std::uint64_t changed = 0;           // elements
  std::uint64_t old_hash = 0, new_hash = 0;
  bool is_verified = false;  // decoding yields new_chunk again
};

/// One coded form of a chunk.
struct CodedChunk {
  std::span<const std::uint32_t> lengths;  // one for each block
  ByteSpan coded;
};

/// One chunk to be decoded from its old bytes, by one or several coded steps in sequence.
struct DecodeJob {
  Kind kind = Kind::u8;
  ByteSpan old_chunk;
  std::span<const CodedChunk> steps;  // none: new_chunk becomes old_chunk
  std::span<std::byte> new_chunk;     // the same size; old_chunk itself, or apart from it
  ChangeLog* log = nullptr;           // gets what the steps change; nullptr: nobody asks

  // Results.
  bool is_decoded = false;  // false: a step is malformed; new_chunk is undefined
  std::uint64_t hash = 0;   // of new_chunk; 0 if not decoded
  /// With a log: of old_chunk, if a step replaces a block whatever that held (RAW).  Then the right
  /// new chunk does not prove that the old one was right, and the log with it; elsewhere it does,
  /// since the steps add to what was there.
  std::optional<std::uint64_t> old_hash = {};
  bool by_gpu = false;  // which may have done all of it or a part, or refused it
};

/// Patches of one chunk (kernels/dispatch/patch.hpp), to be added up.
struct FoldJob {
  Kind kind = Kind::u8;
  std::size_t chunk_bytes = 0;          // whole elements, at most one chunk
  std::span<const CodedChunk> patches;  // a patch for each block; their order does not matter

  // Results; previous contents are replaced.
  std::vector<std::uint32_t> lengths;  // of the sum's patches, one for each block, 0 = unchanged
  std::vector<std::byte> folded;       // these back to back
  bool is_folded = false;              // false: a patch is malformed; the sum is undefined
};

class ChunkCoder {
 public:
  virtual ~ChunkCoder() = default;

  virtual void encode(std::span<EncodeJob> jobs) = 0;

  /// In place (new_chunk is old_chunk), unchanged elements are not copied; after a job that is not
  /// decoded the old chunk is lost.
  virtual void decode(std::span<DecodeJob> jobs) = 0;

  /// Whether encode() and decode() write logs; where they do not, nobody may ask for them.
  [[nodiscard]] virtual bool writes_logs() const noexcept { return false; }

  virtual void fold(std::span<FoldJob> jobs) = 0;

  /// Says that the GPU decoded `chunk` wrongly, or refused it, where the CPU made it right: from
  /// now on the CPU does all the work.
  virtual void distrust(std::string_view /*chunk*/) {}

  /// Where the work is done, for display: "avx3_dl", "cuda: NVIDIA H200".
  [[nodiscard]] virtual std::string name() const = 0;

  /// Bytes of chunks, or of patches, from which on a call of decode() or fold() is worthwhile.
  /// Larger batches are right too, but the CPU works on each while it is in the cache.
  [[nodiscard]] virtual std::size_t decode_batch_bytes() const noexcept = 0;
};

/// A coder shared by several threads, as passed in options.
using SharedCoder = std::shared_ptr<ChunkCoder>;

}  // namespace weightfs::kernels
