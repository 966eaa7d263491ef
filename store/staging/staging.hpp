// Staging: the tree of files that trainers write, and of what they have handed over.
//
//     root 1, "/staging"   an ordinary POSIX tree
//     root 2, "/publish"   directories that were handed over, sealed:
//     store/handover/publish_queue.hpp
//
// Names and attributes are in memory and, by every call that changes them, in RocksDB (families
// `inodes` and `names`); bytes are in <store>/staging/<id>.  All of it survives kill -9; a power
// cut only what fsync(2) or sync_directory() made durable, as on other file systems.
//
//     files                  mode, owner in the record; size, blocks, times are the backing file's,
//                            which is 0600 and the daemon's
//     directories, symlinks  everything in the record
//
// A backing file is made before its record, and removed after it was forgotten and the records were
// synced, which is soon after the last name and the last open are gone: so after a power cut the
// tree is one that was there, and no name in it has lost its bytes to a later change.  One without
// a record is removed when the store is opened.
//
// Invariants
//   * Every inode but the roots has exactly one name; unlinked ones that are open have none.
//   * An id is never given out twice, also over restarts.
//   * What lies below root 2, or in a subtree that is being sealed, does not change.
//
// Errors are PosixError: what a caller of an ordinary directory would get.
//
// Threads: all calls may run in parallel.  The mutex of the tree is held over nothing slow; changes
// of names and attributes are one after the other, each over its write to the database.  None of
// that waits for the bucket, the fsync of a file, a truncate, or make_room.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/local/db.hpp"
#include "store/os/file.hpp"
#include "store/staging/types.hpp"

namespace weightfs {

struct StagingOptions {
  /// Makes room for that many more bytes on the file system of the store, or throws no_space.
  /// Called without locks.  Empty: there is always room.
  std::function<void(std::uint64_t bytes)> make_room;
  /// Of the roots.  Whoever may write there may hand over.
  Caller owner = {};
  mode_t mode = 0755;
};

class Staging {
 public:
  /// Loads the tree.  `directory`: <store>/staging, made if it is not there.  Keeps the reference.
  /// Throws Error: corrupt (records that do not fit), io.
  Staging(Db& db, std::filesystem::path directory, StagingOptions options);
  ~Staging();

  // ---- looking ----

  [[nodiscard]] StagingId lookup(StagingId parent, std::string_view name) const;
  [[nodiscard]] struct stat attributes(StagingId id) const;  // st_ino: the id
  [[nodiscard]] std::string read_link(StagingId id) const;
  /// Calls each(entry) for the names behind `offset` (0: from the start) until it answers false;
  /// without "." and "..".
  void read_directory(StagingId id, std::uint64_t offset,
                      const std::function<bool(const StagingName&)>& each) const;
  /// Of a root: itself.  Of an unlinked inode: ENOENT.
  [[nodiscard]] StagingId parent_of(StagingId id) const;
  /// "staging/a/b", "publish/step-42/x"; "" for what has no name.
  [[nodiscard]] std::string path_of(StagingId id) const;
  /// The directory directly below a root that holds it, and which root that is.
  struct Top {
    StagingId root = 0, id = 0;
    std::string name;  // of `id`
    std::string path;  // of the inode, below `id`; "" for `id` itself
  };
  [[nodiscard]] std::optional<Top> top_of(StagingId id) const;  // nullopt: a root, or unlinked
  /// The names that lead to it: a root first, itself last; empty if it is unlinked.
  struct Step {
    StagingId id = 0;
    std::string name;  // "" for the root
  };
  [[nodiscard]] std::vector<Step> way_to(StagingId id) const;
  /// All files below /staging.
  [[nodiscard]] std::vector<StagingId> staged_files() const;
  [[nodiscard]] StagingSummary summary() const;

  // ---- changing names ----

  StagingId make_file(StagingId parent, std::string_view name, mode_t mode, Caller caller);
  StagingId make_directory(StagingId parent, std::string_view name, mode_t mode, Caller caller);
  StagingId make_symlink(StagingId parent, std::string_view name, std::string_view target,
                         Caller caller);
  void unlink(StagingId parent, std::string_view name);
  void remove_directory(StagingId parent, std::string_view name);
  /// Within /staging.  `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE.
  void rename(StagingId parent, std::string_view name, StagingId new_parent,
              std::string_view new_name, unsigned flags);

  // ---- files ----

  void change(StagingId id, const AttributeChange& change);
  /// As fallocate(2).
  void allocate(StagingId id, int mode, std::uint64_t offset_bytes, std::uint64_t size_bytes);
  /// Where the bytes are.
  [[nodiscard]] std::filesystem::path backing_path(StagingId id) const;
  /// Counts an open; with `writes` it is one of a writer.  EROFS, or EBUSY while a seal is tried,
  /// if it is sealed and `writes`.
  void open(StagingId id, bool writes);
  /// Counts a release.  Returns: true if that was the last writer's.  With the last open of an
  /// unlinked file its bytes go.  Unknown ids are ignored.
  bool release(StagingId id, bool writes) noexcept;
  /// Before a write that the daemon does itself: room, and that the inode may be written.
  void prepare_write(StagingId id, std::uint64_t offset_bytes, std::uint64_t size_bytes);
  /// Durable after it: bytes, and all names and attributes changed before.
  void sync_file(StagingId id, bool data_only);
  void sync_directory(StagingId id);

  // ---- handing over: for PublishQueue ----

  /// While it lives, the subtree below a directory is sealed: writable opens and changes in it get
  /// EBUSY, but for writes, truncate and fallocate of a file that still has a writer.
  class Seal {
   public:
    Seal(Staging& staging, StagingId directory);  // EBUSY if it, or a part of it, is sealed already
    ~Seal();
    Seal(const Seal&) = delete;
    Seal& operator=(const Seal&) = delete;

   private:
    Staging& staging_;
    StagingId directory_;
  };

  /// Everything below a directory, by path.
  [[nodiscard]] std::vector<StagedFile> list(StagingId directory) const;

  /// Waits until no file below the directory has a writer.  Returns: false if `until` comes first.
  /// Throws Error: cancelled.
  bool wait_unwritten(StagingId directory, const Context& context, Clock::time_point until) const;

  /// The generation of a file: changes whenever somebody may have written to it.
  [[nodiscard]] std::uint64_t generation(StagingId id) const;

  /// Moves a directory from staging below the publish root, together with other changes of the
  /// database, in one synced write.  EBUSY if the name is taken there.
  void hand_over(StagingId directory, std::string_view new_name, std::vector<Db::Change> also);

  /// The reverse: into /staging.  EEXIST, ENOTEMPTY ... as rename(2) with RENAME_NOREPLACE.
  void take_back(StagingId directory, StagingId new_parent, std::string_view new_name,
                 std::vector<Db::Change> also);

  /// Lets unlink() and remove_directory() work below that directory of the publish root.
  void allow_removal(StagingId directory);

  /// Ends a hand-over that was published: removes the records of the `published` files, moves what
  /// else is a file or symlink back to /staging, at `origin` below the root or, if that name is
  /// taken there, to "NAME.unpublished-<number>" (and "-<number>.2" ...) beside it; directories are
  /// made as needed, empty ones vanish.  If the directory of the origin is gone or sealed, into
  /// /staging itself.  One synced write, with `also`; then the bytes' names of `published` are
  /// removed, of open ones at the last release: those stay readable, and never change.
  /// Returns: where the rest is now, below /staging; "" if nothing was left.
  std::string finish(StagingId directory, std::span<const StagingId> published,
                     const StagingOrigin& origin, std::uint64_t number,
                     std::vector<Db::Change> also);

 private:
  struct State;
  friend class StagingChange;
  friend class WriterPin;
  friend class StagingLoader;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
