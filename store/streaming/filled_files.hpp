// Filled files: the files of a version that is filled while it is read, cut into windows.  Windows
// are numbered through all files: blobs come first, then the weights files in their order.
//
// Threads: pure functions of values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "store/base/context.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/window_writer.hpp"

namespace weightfs {

/// A file being filled: a file of the layout, or a blob.
struct FilledFile {
  [[nodiscard]] std::size_t window_at(std::uint64_t offset_bytes) const {
    return blob != nullptr ? first_window
                           : first_window + static_cast<std::size_t>(offset_bytes / kWindowBytes);
  }
  [[nodiscard]] std::uint64_t window_bytes(std::size_t window) const {
    if (blob != nullptr) return size_bytes;
    return std::min(kWindowBytes, size_bytes - (window - first_window) * kWindowBytes);
  }

  const LayoutFile* weights = nullptr;
  const BlobRef* blob = nullptr;
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;
  std::size_t first_window = 0, window_count = 0;  // window_count 0: it is linked
  std::size_t windows_left = 0;
  bool is_here = false;  // complete and sealed
};

/// Checks that at least one file of the plan's base exists: a host need not have all of them.
/// Throws BaseDamaged.
void check_base_files(const Plan& plan);

/// Makes the files in `directory`, with their full size and in one extent; links what the plan's
/// base already has.  `only`: files of the layout to make; empty: all.  Requires: `directory` has
/// none of them, but the directories that they are in.
/// Throws Error: no_space, io, cancelled.
std::vector<FilledFile> make_filled_files(const Plan& plan, const std::filesystem::path& directory,
                                          const FileSet& only, const Context& context);

}  // namespace weightfs
