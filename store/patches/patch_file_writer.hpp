// PatchFileWriter: writes the patches of one span into sorted files, in bounded memory.
//
// A file has at most kSortedFileBytesMax bytes and one patch, and patches of one span only: so
// whatever removes a span removes whole files.  Nothing is installed: that is PatchTable's part.
//
// Threads: one thread at a time.  Memory: what the table file holds back, below 1 MiB.
// Ownership: keeps the reference to the database; files that are not taken are removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "store/database/db.hpp"
#include "store/patches/chunk_patch.hpp"
#include "store/patches/patch_span.hpp"

namespace weightfs {

/// Finished files, and what is in them.
struct PatchFiles {
  std::vector<SortedFile> files;
  std::uint64_t chunk_count = 0;
  std::uint64_t size_bytes = 0;  // of the files
};

class PatchFileWriter {
 public:
  /// `directory`: for the files; of the file system of the database.
  /// `file_bytes_max`: smaller than kSortedFileBytesMax only in tests.
  PatchFileWriter(Db& db, std::filesystem::path directory, PatchSpan span,
                  std::uint64_t file_bytes_max = kSortedFileBytesMax);

  /// Requires: `place` is above all places before.
  /// Throws Error: no_space, io; the writer is then of no use.
  void add(ChunkPlace place, const ChunkPatch& patch);

  /// Whether add() would begin another file, since the present one has no room for this patch.
  [[nodiscard]] bool would_begin_file(const ChunkPatch& patch) const noexcept;

  /// Of all files so far, the one that is being written too.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;

  /// All files so far, finished; the next patch begins another one.  No files if there was no
  /// patch.  Throws Error: no_space, io.
  PatchFiles take();

 private:
  void finish_file();

  Db& db_;
  const std::filesystem::path directory_;
  const PatchSpan span_;
  const std::uint64_t file_bytes_max_;
  std::optional<SortedFile> file_;  // being written
  PatchFiles done_;
};

}  // namespace weightfs
