// FileKind: what a file of the mount is, and so where its bytes come from.  Tree::open() answers
// it, and nobody asks again while the file is open.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>

#include "fs/base/inode.hpp"

namespace weightfs::fs {

/// Generated when it is opened: a file of .weightfs.
struct TextFile {
  Inode inode = 0;
};

/// The change that led to a version: built when it is opened, and then a LocalFile.
struct DeltaFile {
  std::uint64_t version = 0;
};

/// All of it is in the store.
struct LocalFile {
  std::filesystem::path image;
  std::string path;  // in its version
  std::uint64_t size_bytes = 0;
};

/// Its version is filled while it is read: only what PartialVersion::ask() says is here may be.
struct StreamingFile {
  LocalFile local;  // what it becomes
  std::uint64_t version = 0;
  bool has_begun = false;  // else there is no image yet, and nothing is fetched before an OPEN
};

/// This host does not keep it: RemoteFiles has its bytes.
struct RemoteFile {
  std::uint64_t version = 0;
  std::string path;  // in its version
  std::uint64_t size_bytes = 0;
};

using FileKind = std::variant<TextFile, DeltaFile, LocalFile, StreamingFile, RemoteFile>;

}  // namespace weightfs::fs
