// Tree: what a mount shows of the repository.  Does not use libfuse; tests use it without a mount.
//
//     /latest -> versions/42          absent until version 1 is here
//     /versions/42/...                complete checkpoints; lists the versions whose images are
//                                     here or streaming; others can be opened by name
//                                     (Sync::name_version)
//     /tags/step-42 -> ../versions/42
//     /deltas/42.safetensors          the change from 41 to 42: store/inspect/delta_files.hpp
//     /deltas/40-42.safetensors       from 40 to 42; can be opened by name, in either direction
//     /deltas/40-42.with-old.safetensors   likewise, with the old values
//     /.weightfs/status               JSON
//     /.weightfs/advice               text
//     /.weightfs/health               one line
//
// and on a writer's mount the names of what the tree does not manage itself:
//
//     /staging /publish               attributes and content: store/staging/staging.hpp
//     /.weightfs/last_error           why the last hand-over was refused
//
// Everything follows from a Catalog and an inode number.  The tree keeps no table of inodes, so
// FORGET needs no answer, and a new process knows every number that its predecessor used.
//
// Threads: all calls may run in parallel; each uses one Catalog from start to end.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "fs/base/inode.hpp"
#include "fs/fuse/file_kind.hpp"
#include "store/catalog/catalog.hpp"
#include "store/inspect/delta_files.hpp"

namespace weightfs::fs {

/// Owner and mode of the mount's files.
struct Ownership {
  std::uint32_t uid = 0, gid = 0;
  std::uint32_t umask = 0222;  // removed from 0777 for directories and 0666 for files
};

/// Attributes, and how long the kernel may cache them and the name that led to them.
struct Node {
  struct stat attributes {};
  double attribute_timeout_s = 0;
  double entry_timeout_s = 0;
};

/// The target of `latest` for this version: "versions/42".
std::string version_target(std::uint64_t version);
/// The target of a tag: "../versions/42".
std::string tag_target(std::uint64_t version);

/// A directory entry.  `next` is the offset after it, which stays valid while versions come and go.
struct DirectoryEntry {
  std::string name;
  Inode inode = 0;
  std::uint32_t type = 0;  // S_IFDIR, S_IFREG, S_IFLNK
  std::uint64_t next = 0;
};

/// What is known about a delta; nullopt: DeltaFiles::facts() must be called first, which may take
/// time.
using FindDeltaFacts = std::function<std::optional<DeltaFacts>(const DeltaId& id)>;

class Tree {
 public:
  /// Without `deltas` there is no /deltas.
  Tree(std::function<std::shared_ptr<const Catalog>()> catalog, Ownership ownership,
       bool is_writer = false, FindDeltaFacts deltas = {});

  /// Throws Error: not_found (never cached by the kernel), invalid if `parent` is not a directory.
  [[nodiscard]] Node lookup(Inode parent, std::string_view name) const;
  [[nodiscard]] Node attributes(Inode inode) const;

  /// The delta that `parent` has under this name, or that `inode` is; nullopt if it is
  /// not a delta.  For a delta whose facts are unknown, lookup() and attributes() throw
  /// not_found.
  [[nodiscard]] std::optional<DeltaId> find_delta(Inode parent, std::string_view name) const;
  [[nodiscard]] std::optional<DeltaId> find_delta(Inode inode) const;

  /// The version that must be named before `parent` can have this name: a version's own name, or a
  /// name in a version that was evicted since `parent` was looked up. nullopt if the catalog has
  /// it, or it is not a version's name.
  [[nodiscard]] std::optional<std::uint64_t> find_unnamed(Inode parent,
                                                          std::string_view name) const;

  /// Target of a symlink, for a process that is in no pass.
  /// Throws Error: not_found; invalid if it is not a symlink.
  [[nodiscard]] std::string read_link(Inode inode) const;

  /// Calls each(entry) for the names from `offset` on until it returns false.  "." and ".." come
  /// first.
  void read_directory(Inode inode, std::uint64_t offset,
                      const std::function<bool(const DirectoryEntry&)>& each) const;

  /// Throws Error: not_found, also for a version that is gone (ESTALE makes the kernel look it up
  /// again); invalid if it is not a file.
  [[nodiscard]] FileKind open(Inode inode) const;

 private:
  std::optional<DeltaId> delta_of(const Catalog& catalog, Inode inode) const;

  std::function<std::shared_ptr<const Catalog>()> catalog_;
  Ownership ownership_;
  bool is_writer_;
  FindDeltaFacts deltas_;
};

}  // namespace weightfs::fs
