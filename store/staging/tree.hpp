// Staging tree: the names and inodes of staging in memory, without database, files and locks.
//
// Invariants
//   * An inode's `parent` and `name` are its only directory entry. A root, and an inode that was
//     unlinked while it was open, have parent 0.
//   * `subdirectories` counts the entries that are directories.
//
// Errors: PosixError; a change that throws has no effect.
// Threads: none; store/staging/staging.cpp locks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "store/staging/records.hpp"

namespace weightfs {

struct StagingInode {
  StagingRecord record;
  StagingId parent = 0;
  std::string name;

  struct Entry {
    StagingId id = 0;
    std::uint64_t position = 0;
  };
  std::map<std::string, Entry, std::less<>> entries;
  std::map<std::uint64_t, const std::string*> positions;  // keys of `entries`, in listing order
  std::uint64_t subdirectories = 0;

  unsigned opens = 0, writers = 0;
  std::uint64_t generation = 0;
  bool is_being_sealed = false;     // of a directory: applies to all below it
  bool is_removal_allowed = false;  // likewise
  bool is_published = false;        // the bytes belong to an image

  [[nodiscard]] bool is_directory() const { return S_ISDIR(record.mode); }
  [[nodiscard]] bool is_file() const { return S_ISREG(record.mode); }
  [[nodiscard]] bool is_symlink() const { return S_ISLNK(record.mode); }
};

class StagingTree {
 public:
  /// The first listing position; lower ones are for "." and "..".
  static constexpr std::uint64_t kFirstPosition = 16;

  // ---- reading ----

  [[nodiscard]] const StagingInode* find(StagingId id) const;
  [[nodiscard]] StagingInode* find(StagingId id);
  // The next three are also called only to check.
  /// ESTALE if there is none.
  const StagingInode& get(StagingId id) const;
  StagingInode& get(StagingId id);
  /// ENOTDIR; ENOENT if it was removed (an id below `given_out`, or unlinked), otherwise ESTALE.
  const StagingInode& directory(StagingId id) const;
  /// ESTALE, EISDIR, or EINVAL for a symlink.
  const StagingInode& file(StagingId id) const;
  /// Requires: the directory exists.
  [[nodiscard]] std::optional<StagingId> child(StagingId directory, std::string_view name) const;

  static bool is_root(StagingId id) { return id == kStagingRoot || id == kPublishRoot; }
  /// The topmost inode above it: a root, or one without a name.
  [[nodiscard]] StagingId root_of(StagingId id) const;
  /// True also for `ancestor` itself.
  [[nodiscard]] bool is_below(StagingId id, StagingId ancestor) const;
  /// "staging/a/b"; "" if it has no name.
  [[nodiscard]] std::string path_of(StagingId id) const;
  /// The path of an entry that need not exist; for messages.
  [[nodiscard]] std::string path_of(StagingId directory, std::string_view name) const;
  /// Calls each(path below `directory`, id, inode) for everything below it, parents first.
  void walk(
      StagingId directory,
      const std::function<void(const std::string&, StagingId, const StagingInode&)>& each) const;
  [[nodiscard]] const std::unordered_map<StagingId, StagingInode>& inodes() const {
    return inodes_;
  }

  // ---- checks ----

  enum class Change {
    attributes,  // or the entries of a directory, or the inode's own name
    bytes,       // of a file already open for writing, while its seal is being tried
    removal      // of its name
  };
  /// EROFS below the publish root and for published files, EBUSY while a seal is being tried.
  void require_changeable(StagingId id, Change change) const;
  [[nodiscard]] bool is_changeable(StagingId id) const;  // its attributes

  // ---- changes; requires: the change is valid ----

  StagingInode& add(StagingId id, StagingRecord record);
  void erase(StagingId id);
  void link(StagingId directory, const std::string& name, StagingId id);  // or replaces
  void unlink(StagingId directory, const std::string& name);

  /// All ids given out are below this.
  StagingId given_out = kFirstStagingId;

 private:
  std::unordered_map<StagingId, StagingInode> inodes_;
  std::uint64_t next_position_ = kFirstPosition;
};

}  // namespace weightfs
