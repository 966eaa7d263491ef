// StoreDirectory: the directory of a store: its owner, its marker, and its lock.
//
// The marker `STORE` is what makes a directory a store:
//
//     weightfs store 1
//     <repository id>
//     <url>
//
// Only an absent or empty directory becomes a store, so that a mistyped --store never does harm.
//
// Threads: one thread at a time.  Ownership: holds the lock as long as it lives.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/error.hpp"
#include "store/os/file.hpp"

namespace weightfs {

/// The contents of a marker; `format` may be another release's.
struct StoreMarker {
  std::string format, repository, url;
};

/// Of the store at `path`.  Nobody keeps it open.
std::filesystem::path marker_path(const std::filesystem::path& path);

/// nullopt if `path` has no readable marker.
std::optional<StoreMarker> find_marker(const std::filesystem::path& path);

/// What a mount or a sync writes into its store to show who uses it or used it last (the file
/// `used-by`).
struct StoreUser {
  int pid = 0;
  std::filesystem::path place;  // the mount point, or the directory
};

/// nullopt if there is none, or it cannot be read.
std::optional<StoreUser> find_last_user(const std::filesystem::path& store);

/// Records that this process uses the store for `place`.  Requires: it holds the lock.
/// Throws Error: no_space, io.
void write_user(const std::filesystem::path& store, const std::filesystem::path& place);

/// What to do where a store cannot be opened, for the end of a message.  Empty if nobody knows, or
/// the error says it.
std::string find_store_remedy(const Error& error);

class StoreDirectory {
 public:
  /// Makes or takes the directory, mode 0700, and locks it.  A new one gets its marker.
  /// Throws Error: see Store::open.
  StoreDirectory(const std::filesystem::path& path, std::string_view repository,
                 std::string_view url);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// True if another release wrote the contents, in another format.
  [[nodiscard]] bool has_other_format() const noexcept { return has_other_format_; }

  /// Removes everything but marker, lock and log, and rewrites the marker.  Staged files are kept
  /// under staging.lost-<k>.
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
