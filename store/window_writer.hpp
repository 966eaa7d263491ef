// WindowWriter: writes a segment of a file front to back in file-aligned windows of kWindowBytes,
// so that the page cache holds the image in large folios and readers scan it at full speed.
//
// Threads: belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "store/materialize.hpp"

namespace weightfs {

class WindowWriter {
 public:
  WindowWriter();

  /// Begins a segment.  Requires: the offset is a multiple of kWindowBytes.  `path` names the file
  /// in messages; it must stay until finish().
  void start(int fd, const std::filesystem::path& path, std::uint64_t offset_bytes);

  /// Throws Error: no_space, io.
  void append(std::span<const std::byte> bytes);
  void finish();

 private:
  void flush();

  std::unique_ptr<std::byte[]> window_;
  std::size_t used_ = 0;
  int fd_ = -1;
  const std::filesystem::path* path_ = nullptr;
  std::uint64_t offset_ = 0;  // of the window
};

}  // namespace weightfs
