// SeedDirectory: a checkpoint on this host, such as a base model from the Hub, whose tensors may be
// those of a snapshot: what it has need not be fetched.
//
// All safetensors files below the directory are read once, their headers only.  Symlinks to regular
// files are followed, since caches of the Hub consist of those; symlinks to directories and hidden
// names are not.  A file that cannot be read, or a directory below, is left out, which is in the
// log.  Nothing is ever written there, and nothing is believed: whoever copies bytes compares them
// with the snapshot's hashes (store/seed/snapshot_pieces.hpp), so the files may change, or go, at
// any time.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/format/layout.hpp"
#include "store/os/file.hpp"

namespace weightfs {

/// For `status`.
struct SeedState {
  std::filesystem::path directory;
  std::size_t files = 0, tensors = 0;
  std::uint64_t taken_bytes = 0;  // that were not fetched, by this process
};

class SeedDirectory {
 public:
  /// A tensor in a file.
  struct Place {
    std::uint32_t file = 0;
    std::uint64_t offset_bytes = 0;  // from the start of the file
  };

  /// Of one name, dtype and shape; others are left out.
  static constexpr std::size_t kPlacesMax = 4;

  /// Throws Error: not_found (no such directory), invalid (not a directory, no safetensors file
  /// that can be read, too many files or tensors), permission, io.
  static std::shared_ptr<const SeedDirectory> open(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Where tensors of this name, dtype and shape are, by the paths of their files.
  [[nodiscard]] std::span<const Place> find(const LayoutTensor& tensor) const;

  /// A file, for reading.  Throws Error: not_found, permission, io (also if it is not a regular
  /// file any more).
  [[nodiscard]] File open_file(std::uint32_t file) const;
  [[nodiscard]] const std::filesystem::path& path_of(std::uint32_t file) const {
    return files_[file];
  }

  /// Logs why a file cannot be read; the first time only.
  void complain(std::uint32_t file, const std::string& reason) const;

  void add_taken(std::uint64_t bytes) const noexcept { taken_bytes_ += bytes; }

  [[nodiscard]] SeedState state() const;

 private:
  using Places = std::unordered_map<std::string, std::vector<Place>>;

  SeedDirectory(std::filesystem::path path, std::vector<std::filesystem::path> files, Places places,
                std::size_t tensors);

  const std::filesystem::path path_;
  const std::vector<std::filesystem::path> files_;
  const Places places_;  // by key_of()
  const std::size_t tensors_;
  mutable std::vector<std::atomic<bool>> told_;  // of files_: complained
  mutable std::atomic<std::uint64_t> taken_bytes_ = 0;
};

}  // namespace weightfs
