// ImageMemory: a file system in memory (tmpfs) for images, `--images memory`.
//
// It is mounted nowhere: this process reaches it through a descriptor, other processes not at all,
// and it ends with the last descriptor and the last open file.  So whatever ends the process,
// nothing is left of it but what readers have open.
//
// Its pages count as memory of this process's cgroup, and the kernel cannot take them back; where
// it can, they are kept from swap.  Files are in huge pages where they fill one.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>

#include "store/os/file.hpp"

namespace weightfs {

class ImageMemory {
 public:
  /// Throws Error: permission (it takes CAP_SYS_ADMIN), unsupported (Linux before 5.2, or without
  /// tmpfs), io; each says what to do.
  ImageMemory();

  /// Paths that only this process can use, on one file system; all exist.
  [[nodiscard]] std::filesystem::path images() const;
  [[nodiscard]] std::filesystem::path deltas() const;
  [[nodiscard]] std::filesystem::path temporary() const;

  /// From now on files may take so many bytes together, a little more for directories and rounding.
  /// A lower number than what is there changes nothing.  Throws Error: io.
  void set_limit(std::uint64_t bytes) const;

 private:
  [[nodiscard]] std::filesystem::path root() const;

  File mount_;
};

}  // namespace weightfs
