// PackSpool: the data of all packs of a plan, fetched and verified, in one unlinked local file.
//
// Every piece is checked against its SHA-256 before anything is decoded, so a damaged pack stops a
// materialisation before it has written an image.
//
// Threads: immutable after construction; read() may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "store/file.hpp"
#include "store/materialize.hpp"

namespace weightfs {

class PackSpool {
 public:
  /// Fetches.  Keeps a reference to `plan`.
  /// Throws ObjectError (not_found, corrupt: names the pack); Error: no_space, unavailable,
  /// cancelled.
  PackSpool(const Plan& plan, Repository& repository, const std::filesystem::path& directory,
            unsigned threads, const Context& context, const Progress& progress);

  /// Reads the coded bytes of a chunk that step `step` lists at `place`.
  /// Requires: into.size() is that chunk's data_size_bytes.
  void read(std::size_t step, Listed place, std::span<std::byte> into) const;

 private:
  const Plan& plan_;
  std::filesystem::path directory_;
  std::vector<std::vector<std::uint64_t>> offsets_;  // in the file; by step, then by pack
  File file_;
};

}  // namespace weightfs
