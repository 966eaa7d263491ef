// SnapshotWindow: makes windows of a version that is its snapshot, byte for byte.  Every piece of
// the snapshot is fetched once, into the memory from which it is written.
//
// A window is a whole number of pieces, but chunks may reach across its ends:
//
//     pieces      |    |    |    |    |    |    |    |    |      SHA-256, when they arrive
//     window               [                   ]
//     chunks         |        |        |        |        |       hash: inside by write(),
//                             inside            across           across by check_across()
//
// So readers may have the window only when check_across() was true for both of its ends, which
// needs the neighbour's bytes.  SegmentWriter, which needs no neighbour, fetches them as well, and
// says what is wrong where this says `false`.
//
// Memory: a window and its neighbours' parts of two chunks.
//
// Threads: belongs to one thread at a time; make one for each worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "store/base/context.hpp"
#include "store/materialize/plan.hpp"
#include "store/seed/snapshot_pieces.hpp"
#include "store/timing/build_meter.hpp"

namespace weightfs {

class SnapshotWindow {
 public:
  /// Whether the files of the plan are those of its snapshot.
  [[nodiscard]] static bool suits(const Plan& plan);

  /// Keeps the references.  Requires: suits(plan).  `meter` may be null.
  SnapshotWindow(const Plan& plan, Repository& repository, const Context& context,
                 BuildMeter* meter);

  /// Writes the window that begins at `begin` of `file` to `fd`, the file at `path`.
  /// Returns: whether every chunk inside has the expected hash.  Nothing is written otherwise.
  /// Throws ObjectError (a piece is missing or damaged); Error: no_space, io, cancelled,
  /// unavailable.
  [[nodiscard]] bool write(const LayoutFile& file, int fd, const std::filesystem::path& path,
                           std::uint64_t begin);

  /// Whether the chunk across one end of the window that was written last has the expected hash;
  /// reads the neighbour's part from the file.  Requires: the neighbour was written.
  /// Throws Error: io.
  [[nodiscard]] bool check_across(const LayoutFile& file, int fd, const std::filesystem::path& path,
                                  std::uint64_t end);

  /// Whether a chunk lies across this offset of the file.
  [[nodiscard]] static bool is_across(const Layout& layout, const LayoutFile& file,
                                      std::uint64_t offset_bytes);

 private:
  /// A chunk, and where it lies in its file.
  struct Place {
    std::uint64_t number = 0;  // of the version
    std::uint64_t begin = 0, end = 0;
  };
  static std::optional<Place> find_across(const Layout& layout, const LayoutFile& file,
                                          std::uint64_t offset_bytes);
  void keep_tail(const LayoutFile& file, std::uint64_t begin);
  void place_head(const LayoutFile& file);
  [[nodiscard]] bool check_inside(const LayoutFile& file) const;
  [[nodiscard]] bool is_right(const Place& chunk) const;
  [[nodiscard]] std::span<std::byte> bytes(std::uint64_t begin, std::uint64_t end) const;

  const Plan& plan_;
  SnapshotPieces pieces_;
  BuildMeter* const meter_;
  std::unique_ptr<std::byte[]> memory_;
  const LayoutFile* file_ = nullptr;   // of the window in memory
  std::uint64_t begin_ = 0, end_ = 0;  // that window
  std::uint64_t kept_ = 0;             // bytes before it that are in memory, too
};

}  // namespace weightfs
