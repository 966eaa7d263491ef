// Checkpoint reader: the bytes of a scanned checkpoint, guarded against changes since the scan.
//
// Files are opened on demand, so the number of descriptors does not grow with the number of shards;
// each open compares the file's stamp (inode, size, times) with the scan's.
//
// A stamp does not show every change: a store through a shared mapping does not update the times if
// its page is already dirty.  So the kernel is asked whether there are writers
// (store/os/lease.hpp), and hashes are compared: each byte is read once for the hashes of chunks,
// and again for the upload, where every piece must still have its mark.
//
// Threads: all calls may run in parallel.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/base/sha256.hpp"
#include "store/format/checked_source.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/chunk_batches.hpp"
#include "store/format/layout.hpp"
#include "store/os/file.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

class CheckpointReader {
 public:
  /// Keeps both references.  Requires: `layout` was made from `checkpoint`.
  CheckpointReader(const Checkpoint& checkpoint, const Layout& layout);

  [[nodiscard]] const Layout& layout() const noexcept { return layout_; }

  /// Files in the layout, in its order; all others are blobs.
  [[nodiscard]] std::span<const CheckpointFile* const> weights() const noexcept { return weights_; }
  [[nodiscard]] std::span<const CheckpointFile* const> blobs() const noexcept { return blobs_; }

  [[nodiscard]] const std::filesystem::path& path_of(const CheckpointFile& file) const;

  /// Throws Error: busy if the file is gone or has changed since the scan.
  [[nodiscard]] File open(const CheckpointFile& file) const;

  /// Reads from a file returned by open().  Throws Error: busy if it is shorter now; io.
  void read(const File& opened, const CheckpointFile& file, std::uint64_t offset_bytes,
            std::span<std::byte> into) const;

  /// Reads a whole file, for blobs.
  [[nodiscard]] std::string read_all(const CheckpointFile& file) const;

  /// Throws Error: busy if a file has changed since the scan.
  void check_untouched() const;

  /// Waits at most kSourceWriterWait until no process has a file open for writing, or mapped from
  /// such a descriptor.  Skips files for which the kernel cannot tell (store/os/lease.hpp).
  /// Throws Error: busy, naming the first such file; cancelled; as check_untouched().
  void wait_unwritten(const Context& context) const;

  /// Throws Error: busy: the file has changed since it was scanned or hashed.
  [[noreturn]] void refuse(const CheckpointFile& file) const;

 private:
  const Checkpoint& checkpoint_;
  const Layout& layout_;
  std::vector<const CheckpointFile*> weights_, blobs_;
};

/// How long a publish waits for the last writer of its files.
inline constexpr auto kSourceWriterWait = std::chrono::seconds(2);

/// A weights file to be uploaded into a snapshot: the bytes read must be those that were hashed,
/// else Error busy.  What a snapshot says of them, the SHA-256 of each piece, is computed while
/// they are uploaded, beside the disk or the network.
class SnapshotSource final : public Source {
 public:
  /// Keeps the references.  `marks`: of this file, from hash_checkpoint().  Throws Error: busy.
  SnapshotSource(const CheckpointReader& reader, const CheckpointFile& file,
                 std::span<const std::uint64_t> marks);
  [[nodiscard]] std::uint64_t size_bytes() const override { return file_.size_bytes(); }
  void read(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
    checked_.read(offset_bytes, into);
  }

  /// The SHA-256 of each piece.  Reads those that were not read before.
  [[nodiscard]] std::vector<Sha256> pieces() const;

 private:
  void check(std::size_t piece, std::span<const std::byte> bytes) const;

  const CheckpointReader& reader_;
  const CheckpointFile& scanned_;
  const std::span<const std::uint64_t> marks_;
  const File opened_;
  const FileSource file_;
  mutable RankedMutex mutex_{LockRank::leaf, "SnapshotSource::mutex_"};  // guards what follows
  mutable std::vector<std::optional<Sha256>> pieces_;
  const CheckedSource checked_;  // last: it uses those above
};

/// Keeps the last requested file open, since chunks come in file order.
/// Threads: one thread at a time.
class LastOpened {
 public:
  explicit LastOpened(std::function<File(std::uint32_t index)> open) : open_(std::move(open)) {}

  const File& get(std::uint32_t index);

 private:
  std::function<File(std::uint32_t index)> open_;
  std::optional<std::uint32_t> index_;
  File file_;
};

/// Which hashes are wanted of a checkpoint.
struct WhatToHash {
  FileSet without = {};      // the hashes of these files are zeros
  bool with_pieces = false;  // what a snapshot says of them, too, before they are uploaded
};

/// Of the weights of a checkpoint; `pieces` are empty unless they were wanted.
struct CheckpointHashes : SnapshotHashes {
  /// By these whoever reads a file again knows its bytes: the XXH3 (kernels/dispatch/hash.hpp) of
  /// each piece, which costs a tenth of its SHA-256.
  std::vector<std::vector<std::uint64_t>> marks;
};

/// Hashes every chunk and every piece of the checkpoint's weights for a snapshot. All hashes come
/// from the same bytes, and headers must equal the layout's, else Error busy.  Progress: "hashing".
CheckpointHashes hash_checkpoint(const CheckpointReader& reader, const WhatToHash& what,
                                 unsigned threads, const Context& context,
                                 const Progress& progress);

}  // namespace weightfs
