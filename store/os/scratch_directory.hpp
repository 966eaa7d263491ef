// ScratchDirectory: a directory that exists as long as its object.
//
// Threads: a value that can be moved.
#pragma once

#include <filesystem>
#include <string_view>

namespace weightfs {

class ScratchDirectory {
 public:
  /// Makes <parent>/<prefix><random>, and `parent` if it is absent.  Throws Error: permission, io.
  ScratchDirectory(const std::filesystem::path& parent, std::string_view prefix);
  ~ScratchDirectory();  // removes it with everything in it
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&& other) noexcept;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Renames it to `path`, which must be absent or an empty directory; it is kept from now on.
  void keep_as(const std::filesystem::path& path);

 private:
  void remove() noexcept;

  std::filesystem::path path_;  // empty: nothing to remove
};

}  // namespace weightfs
