// Inode numbers: 4 bits kind, 36 bits version, 24 bits file.  They follow from the tree alone, so
// they are the same after a restart and on every host, and nothing has to remember them.
//
// The bytes under a number never change; only symlinks and .weightfs/status are exceptions, and
// those are never cached.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

namespace weightfs::fs {

using Inode = std::uint64_t;

enum class InodeKind : std::uint8_t {
  fixed = 0,    // file: see Fixed
  version = 1,  // entry of a version: directories and files, CatalogEntry number in `file`
  tag = 2,      // symlink of the tag that `version` carries
};

/// The fixed part of the tree; 1 is the root by FUSE's rule.
enum class Fixed : std::uint32_t {
  root = 1,
  latest = 2,
  versions = 3,
  tags = 4,
  control = 5,
  status = 6
};

struct InodeParts {
  InodeKind kind{};
  std::uint64_t version = 0;
  std::uint32_t file = 0;
};

inline constexpr unsigned kFileBits = 24;
inline constexpr unsigned kVersionBits = 36;
inline constexpr std::uint32_t kEntriesMax = (1u << kFileBits) - 1;

constexpr Inode make_inode(InodeParts parts) noexcept {
  return static_cast<Inode>(parts.kind) << (kFileBits + kVersionBits) | parts.version << kFileBits |
         parts.file;
}
constexpr Inode make_inode(Fixed fixed) noexcept { return static_cast<Inode>(fixed); }

constexpr InodeParts parts_of(Inode inode) noexcept {
  return {static_cast<InodeKind>(inode >> (kFileBits + kVersionBits)),
          inode >> kFileBits & ((std::uint64_t{1} << kVersionBits) - 1),
          static_cast<std::uint32_t>(inode & kEntriesMax)};
}

}  // namespace weightfs::fs
