// StoreDirectory: the directory of a store: whose it is, its marker, and its lock.
//
// The marker `STORE` is what makes a directory a store:
//
//     weightfs store 1
//     <repository id>
//     <url>
//
// Only an absent or empty directory becomes one, so that a mistyped --store never harms anything.
//
// Threads: one thread at a time.  Ownership: holds the lock as long as it lives.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "store/os/file.hpp"

namespace weightfs {

/// What a marker says; `format` may be another release's.
struct StoreMarker {
  std::string format, repository, url;
};

/// nullopt if `path` has no marker, or none that can be read.
std::optional<StoreMarker> find_marker(const std::filesystem::path& path);

/// What a mount, or a sync, has written into the store that it uses, or used last (the file
/// `used-by`).
struct StoreUser {
  int pid = 0;
  std::filesystem::path place;  // the mount point, or the directory
};

/// nullopt if nobody has, or it cannot be read.
std::optional<StoreUser> find_last_user(const std::filesystem::path& store);

/// Writes that this process uses the store for `place`.  Requires: it holds the lock.
/// Throws Error: no_space, io.
void write_user(const std::filesystem::path& store, const std::filesystem::path& place);

class StoreDirectory {
 public:
  /// Makes or takes the directory, 0700, and locks it.  Writes the marker of a new one.
  /// Throws Error: see Store::open.
  StoreDirectory(const std::filesystem::path& path, std::string_view repository,
                 std::string_view url);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// True if what lies here was written by a release with another format.
  [[nodiscard]] bool has_other_format() const noexcept { return has_other_format_; }

  /// Removes everything in it but marker, lock and log, and writes the marker anew.  Staged files
  /// are kept under staging.lost-<k>.
  void clear(const StoreMarker& marker);

 private:
  void take_directory();
  void lock();
  void keep_staging() const;
  void check_marker(std::string_view repository, std::string_view url);

  std::filesystem::path path_;
  File lock_;
  bool has_other_format_ = false;
};

}  // namespace weightfs
