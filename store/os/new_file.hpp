// NewFile: a file that appears under its name only when it is complete.
//
// Threads: belongs to its caller.
#pragma once

#include <filesystem>

namespace weightfs {

class NewFile {
 public:
  /// Makes the directory of `file` if it is absent.  Throws Error: exists (something is there), io.
  explicit NewFile(const std::filesystem::path& file);
  ~NewFile();  // removes what is at partial()
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Where the caller makes it: beside its final name.
  [[nodiscard]] const std::filesystem::path& partial() const noexcept { return partial_; }

  /// Gives what is at partial() the file's name and, where there are modes, mode 0644.  Nothing is
  /// replaced; where a file system can neither link nor rename so, by a look beforehand.
  /// Throws Error: exists, io.
  void keep() const;

 private:
  std::filesystem::path target_, partial_;
};

}  // namespace weightfs
