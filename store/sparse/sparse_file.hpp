// SparseFile: a sparse delta that is being written.  The counts tell how many entries precede those
// of a chunk, so chunks are written in any order, each in its place.
//
// Threads: write() may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "store/format/chunk_place.hpp"
#include "store/format/layout.hpp"
#include "store/os/file.hpp"
#include "store/sparse/sparse_layout.hpp"

namespace weightfs {

/// The entries of a chunk; reused for the next one.
struct SparseEntries {
  std::uint32_t changed = 0;             // elements, as the codec counts them
  std::vector<std::uint32_t> positions;  // of elements, counted from the start of the chunk
  std::vector<std::byte> values;         // the new ones
  std::vector<std::byte> old;            // only where they are wanted
  std::vector<std::byte> indices = {};   // used by SparseFile
};

/// Replaces `into` with the elements of a chunk at these positions.
void put_values(std::size_t width_bytes, std::span<const std::byte> chunk,
                std::span<const std::uint32_t> positions, std::vector<std::byte>& into);

class SparseFile {
 public:
  /// Creates the file, which must not exist, with its head and room for the rest.  Keeps the
  /// reference.  `changed`: the counts that `sparse` was made of.
  /// Throws Error: no_space, io.
  SparseFile(const Layout& layout, SparseLayout sparse, std::span<const std::uint32_t> changed,
             std::filesystem::path path);

  [[nodiscard]] const SparseLayout& sparse() const noexcept { return sparse_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Writes the entries of a chunk; those of one without entries are nothing.
  /// Requires: entries.changed is the count of the chunk.
  /// Returns: the bytes written.  Throws Error: no_space, io.
  std::uint64_t write(ChunkPlace place, SparseEntries& entries) const;

  /// Mode 0444 and the time of the newer version.  `sync`: also durable.
  void finish(std::int64_t time, bool sync) const;

 private:
  [[nodiscard]] const SparseLayout::Tensor* find(std::uint32_t number) const;

  const Layout& layout_;
  const SparseLayout sparse_;
  const std::filesystem::path path_;
  std::vector<std::uint64_t> firsts_;  // by chunk number: its first entry within its tensor
  File file_;
};

}  // namespace weightfs
