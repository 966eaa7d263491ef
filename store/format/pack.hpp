// Pack: one bucket object that contains coded chunks of a delta.
//
// A pack is a legal safetensors file with two U8 tensors, `index` and `data`, in this order.  The
// index (zstd) lists ranges of chunks by tensor number, the length of each block, the hash and the
// changed count of each chunk, and the SHA-256 of each piece of the data.  The manifest contains
// the size of the pack and the SHA-256 of its header (safetensors header and index), and so vouches
// for all of it.
//
// Threads: PackIndex is immutable after parse(); PackWriter belongs to one thread. Format:
// docs/FORMAT.md, "Packs".
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/base/sha256.hpp"
#include "store/format/layout.hpp"
#include "store/os/memory_budget.hpp"

namespace weightfs {

inline constexpr std::uint64_t kPieceBytes = 1u << 20;             // unit of SHA-256
inline constexpr std::uint64_t kPackDataBytesTarget = 256u << 20;  // a writer starts the next pack
inline constexpr std::uint64_t kPackBytesMax = 1u << 30;           // every pack is smaller

/// The number of pieces in this many bytes; the last may be shorter.
constexpr std::uint64_t piece_count(std::uint64_t size_bytes) noexcept {
  return size_bytes / kPieceBytes + (size_bytes % kPieceBytes != 0 ? 1 : 0);
}

/// One coded chunk of a pack.
struct PackChunk {
  std::uint32_t tensor = 0;             // number in the version's layout
  std::uint32_t chunk = 0;              // of the tensor
  std::uint64_t hash = 0;               // XXH3-64 of the decoded chunk
  std::uint32_t changed = 0;            // elements
  std::uint64_t data_offset_bytes = 0;  // in the data tensor
  std::uint32_t data_size_bytes = 0;
  std::uint64_t first_block = 0;  // in PackIndex::block_lengths()
  std::uint32_t block_count = 0;
};

/// How many chunks the packs of one delta may still have, and how much memory of this host they may
/// still use.  No chunk is in two packs, so all of them together have no more chunks than the
/// layout: an index that cannot fit is refused before it is inflated, and one is inflated at a
/// time.
///
/// Threads: the packs of a delta may be parsed in parallel.  Keeps a reference to `budget`.
class PackRoom {
 public:
  PackRoom(const Layout& layout, MemoryBudget& budget);

 private:
  friend class PackIndex;
  MemoryBudget& budget_;
  // Held while an index is inflated and read; guards chunks_left_.
  RankedMutex mutex_{LockRank::leaf, "PackRoom::mutex_"};
  std::uint64_t chunks_left_;
};

class PackIndex {
 public:
  /// Parses the first `head_size` bytes of a pack of `pack_size` bytes; the caller has checked
  /// their SHA-256.  Takes its chunks and its memory from `room`.
  /// Throws Error: corrupt, unsupported (it takes too much memory), naming `what` (the key).
  static std::shared_ptr<const PackIndex> parse(std::string_view head, std::uint64_t pack_size,
                                                const Layout& layout, std::string_view what,
                                                PackRoom& room);

  /// The same for a pack alone.
  static std::shared_ptr<const PackIndex> parse(std::string_view head, std::uint64_t pack_size,
                                                const Layout& layout, std::string_view what);

  /// The largest possible header of a pack of `pack_size` bytes.
  static std::uint64_t head_bytes_max(const Layout& layout, std::uint64_t pack_size);

  [[nodiscard]] std::span<const PackChunk> chunks() const noexcept { return chunks_; }  // ascending
  [[nodiscard]] std::span<const std::uint32_t> block_lengths(const PackChunk& chunk) const noexcept;
  [[nodiscard]] std::span<const Sha256> pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::uint64_t data_offset_bytes() const noexcept {
    return data_offset_;
  }  // in the pack
  [[nodiscard]] std::uint64_t data_size_bytes() const noexcept { return data_size_; }

 private:
  PackIndex() = default;
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept;
  std::vector<PackChunk> chunks_;
  std::vector<std::uint32_t> block_lengths_;
  std::vector<Sha256> pieces_;
  std::uint64_t data_offset_ = 0, data_size_ = 0;
};

/// Collects chunks in ascending order of (tensor, chunk) and makes the header of their pack.  The
/// caller keeps the data: what it passes to add(), back to back.
class PackWriter {
 public:
  explicit PackWriter(const Layout& layout);  // keeps a reference, for add()
  ~PackWriter();
  PackWriter(PackWriter&&) noexcept;
  PackWriter& operator=(PackWriter&&) noexcept;

  /// Requires: (tensor, chunk) above the last one added; one length for each block of the chunk;
  ///           the lengths add up to data.size().
  void add(std::uint32_t tensor, std::uint32_t chunk, std::span<const std::uint32_t> block_lengths,
           std::uint64_t hash, std::uint32_t changed, std::span<const std::byte> data);

  /// The bytes that come before the data.  Requires: called once, last, after an add().
  std::string finish();

  /// The same with `first_tensor` added to the number of each tensor, for chunks that were added
  /// with a layout that is a part of the version's.  Requires: finish() was called.
  [[nodiscard]] std::string head(std::uint32_t first_tensor) const;

  /// The hash of each kPieceBytes of the data.  Requires: finish() was called.
  [[nodiscard]] std::vector<Sha256> pieces() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
