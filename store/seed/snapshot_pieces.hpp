// SnapshotPieces: the bytes of a snapshot, piece by piece: those that the seed has are copied from
// there, all others are fetched.  Everything that reads a snapshot reads it here.
//
//     file of the snapshot   | head | tensor | tensor       | tensor |
//     pieces                 |    |    |    |    |    |    |    |
//     seed                     ^layout  ^ any file, matched by name, dtype and shape
//
// A piece from the seed counts only if it has the SHA-256 that the snapshot's hashes have for it,
// as one from the bucket: nothing that lies in the seed is trusted.  A piece of which the seed
// lacks a tensor, or a byte, is fetched whole.  Headers come from the layout, which a host has
// anyway.
//
// Threads: belongs to one thread at a time; make one for each worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "store/base/context.hpp"
#include "store/format/layout.hpp"
#include "store/os/file.hpp"
#include "store/repository/pieces.hpp"
#include "store/repository/repository.hpp"
#include "store/seed/snapshot_seed.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

/// A snapshot, and what this host may have of it.
struct StoredSnapshot {
  std::shared_ptr<const Version> version;
  std::shared_ptr<const Layout> layout;
  SnapshotHashes hashes;
  std::shared_ptr<SnapshotSeed> seed = nullptr;  // nullptr: everything is fetched
};

class SnapshotPieces {
 public:
  /// Keeps the references.  `bucket`: Repository::snapshot_reader().  `meter`: of fetches, which
  /// the caller waits for, and of what is taken; may be null.
  SnapshotPieces(const StoredSnapshot& snapshot, BucketReader& bucket, const Context& context,
                 BuildMeter* meter);

  /// Reads whole pieces of a file of the layout, beginning with `first`.
  /// Requires, throws: as fetch_pieces().
  void read(std::uint32_t file, std::uint64_t first, std::span<std::byte> into);

 private:
  static constexpr std::uint32_t kNoFile = std::numeric_limits<std::uint32_t>::max();

  /// Bytes of a tensor in a piece.
  struct Part {
    std::uint32_t tensor = 0;
    std::uint64_t offset_bytes = 0;  // in the tensor
    std::span<std::byte> into;
  };

  void fetch(const PieceRun& run, std::uint64_t first, std::span<std::byte> into);
  [[nodiscard]] bool take(std::uint32_t file, std::uint64_t piece, std::span<std::byte> into);
  [[nodiscard]] bool find_parts(const LayoutFile& file, std::uint64_t begin,
                                std::span<std::byte> into);
  [[nodiscard]] bool copy_parts(std::size_t turn);
  [[nodiscard]] bool copy(const SeedDirectory::Place& place, const Part& part);

  const StoredSnapshot& snapshot_;
  BucketReader& bucket_;
  const Context& context_;
  BuildMeter* const meter_;
  std::vector<Part> parts_;  // of the current piece
  std::uint32_t number_ = kNoFile;
  File open_;  // the seed's file `number_`
};

}  // namespace weightfs
