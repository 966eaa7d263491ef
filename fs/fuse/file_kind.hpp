// FileKind: what a file of the mount is, which decides where its bytes come from.  Tree::open()
// determines it once for each open.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>

#include "fs/base/inode.hpp"

namespace weightfs::fs {

/// Generated on open: a file of .weightfs.
struct TextFile {
  Inode inode = 0;
};

/// The change from one version to another: built on open, then a LocalFile.
struct DeltaFile {
  DeltaId id;
};

/// Complete in the store.
struct LocalFile {
  std::filesystem::path image;
  std::string path;  // within its version
  std::uint64_t size_bytes = 0;
};

/// Its version is filled while it is read: only ranges that PartialVersion::ask() reports as
/// present may be read.
struct StreamingFile {
  LocalFile local;  // once it is complete
  std::uint64_t version = 0;
  bool has_begun = false;  // false: no image yet; the first OPEN begins to fetch
};

/// Not kept on this host: RemoteFiles has its bytes.
struct RemoteFile {
  std::uint64_t version = 0;
  std::string path;  // within its version
  std::uint64_t size_bytes = 0;
};

using FileKind = std::variant<TextFile, DeltaFile, LocalFile, StreamingFile, RemoteFile>;

}  // namespace weightfs::fs
