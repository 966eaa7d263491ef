// Staging: the tree of files that trainers write, and of the directories handed over.
//
//     root 1, "/staging"   an ordinary POSIX tree
//     root 2, "/publish"   directories that were handed over, sealed:
//                          store/handover/publish_queue.hpp
//
// Names and attributes are in memory and, written by every call that changes them, in RocksDB
// (families `inodes` and `names`); bytes are in <store>/staging/<id>.  All of it survives kill -9;
// a power cut only what fsync(2) or sync_directory() made durable, as on other file systems.
//
//     files                  mode and owner in the record; size, blocks, times are the backing
//                            file's, which has mode 0600 and the daemon's owner
//     directories, symlinks  everything in the record
//
// A backing file is created before its record. It is removed soon after its last name and its last
// open are gone, but only once the change of the records was synced. So the tree after a power cut
// is an earlier state of the tree, and no name in it has lost its bytes to a later change.  A
// backing file without a record is removed when the store is opened.
//
// Invariants
//   * Every inode but the roots has exactly one name; unlinked inodes that are open have none.
//   * An id is never reused, not even after a restart.
//   * What lies below root 2, or in a subtree that is being sealed, does not change.
//
// Errors are PosixError: the error that an ordinary directory would give.
//
// Threads: all calls may run in parallel.  Nothing slow runs under the mutex of the tree; changes
// of names and attributes are serialised, including their database writes.  None of them waits for
// the bucket, the fsync of a file, a truncate, or make_room.
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
#include "store/database/db.hpp"
#include "store/os/boot_id.hpp"
#include "store/os/file.hpp"
#include "store/staging/types.hpp"

namespace weightfs {

struct StagingOptions {
  /// Makes room for this many more bytes on the store's file system, or throws no_space. Called
  /// without locks.  Empty: there is always room.
  std::function<void(std::uint64_t bytes)> make_room;
  /// Of the roots.  Users who may write there may hand over.
  Caller owner = {};
  mode_t mode = 0755;
  /// Whether make_room would have nothing to do.  Quick.  Empty: there is always room.
  std::function<bool(std::uint64_t bytes)> has_room = {};
  /// This run of the machine.  nullopt: it is not known, so no file is taken for one that a restart
  /// has cut.
  std::optional<std::string> boot = find_boot_id();
};

class Staging {
 public:
  /// Loads the tree.  `directory`: <store>/staging, created if it does not exist.  Keeps the
  /// reference.
  /// Throws Error: corrupt (records that do not match), io.
  Staging(Db& db, std::filesystem::path directory, StagingOptions options);
  ~Staging();

  // ---- reading ----

  [[nodiscard]] StagingId lookup(StagingId parent, std::string_view name) const;
  [[nodiscard]] struct stat attributes(StagingId id) const;  // st_ino: the id
  [[nodiscard]] std::string read_link(StagingId id) const;
  /// Calls each(entry) for the names after `offset` (0: from the start) until it returns false;
  /// leaves out "." and "..".
  void read_directory(StagingId id, std::uint64_t offset,
                      const std::function<bool(const StagingName&)>& each) const;
  /// The parent of a root is the root itself.  Throws ENOENT for an unlinked inode.
  [[nodiscard]] StagingId parent_of(StagingId id) const;
  /// "staging/a/b", "publish/step-42/x"; "" if it has no name.
  [[nodiscard]] std::string path_of(StagingId id) const;
  /// The directory directly below a root that contains the inode, and that root.
  struct Top {
    StagingId root = 0, id = 0;
    std::string name;  // of `id`
    std::string path;  // of the inode, below `id`; "" for `id` itself
  };
  [[nodiscard]] std::optional<Top> top_of(StagingId id) const;  // nullopt: a root, or unlinked
  /// The names that lead to the inode, from a root to itself; empty if it is unlinked.
  struct Step {
    StagingId id = 0;
    std::string name;  // "" for the root
  };
  [[nodiscard]] std::vector<Step> way_to(StagingId id) const;
  /// All files below /staging.
  [[nodiscard]] std::vector<StagingId> staged_files() const;
  [[nodiscard]] StagingSummary summary() const;

  // ---- changing names ----

  /// make_file() asks for no room: see prepare_file().
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
  /// The path of the file's bytes.
  [[nodiscard]] std::filesystem::path backing_path(StagingId id) const;
  /// Counts an open, with `writes` by a writer. If it is sealed and `writes`: EROFS, or EBUSY while
  /// the seal is being tried.
  void open(StagingId id, bool writes);
  /// Counts a release.  Returns: true if it was the last writer's.  The last release of an unlinked
  /// file removes its bytes.  Unknown ids are ignored.
  bool release(StagingId id, bool writes) noexcept;
  /// Whether a writer's open was counted, and not its release.  Unknown ids have none.
  [[nodiscard]] bool has_writers(StagingId id) const noexcept;
  /// Makes room for one more file; may take long, so only if has_room_for_file() says no.
  void prepare_file();
  [[nodiscard]] bool has_room_for_file() const;
  /// Prepares a write by the daemon itself: makes room, and checks that the inode may be written.
  void prepare_write(StagingId id, std::uint64_t offset_bytes, std::uint64_t size_bytes);
  /// Makes bytes durable, and all earlier changes of names and attributes.
  void sync_file(StagingId id, bool data_only);
  void sync_directory(StagingId id);

  // ---- handing over: for PublishQueue ----

  /// While it lives, the subtree below a directory is sealed: writable opens and changes in it get
  /// EBUSY, except writes, truncate and fallocate of a file that still has a writer.
  class Seal {
   public:
    Seal(Staging& staging, StagingId directory);  // EBUSY if any part of it is already sealed
    ~Seal();
    Seal(const Seal&) = delete;
    Seal& operator=(const Seal&) = delete;

   private:
    Staging& staging_;
    StagingId directory_;
  };

  /// Everything below a directory, sorted by path.
  [[nodiscard]] std::vector<StagedFile> list(StagingId directory) const;

  /// Waits until no file below the directory has a writer.  Returns: false if `until` comes first.
  /// Throws Error: cancelled.
  bool wait_unwritten(StagingId directory, const Context& context, Clock::time_point until) const;

  /// The generation of a file: changes whenever the file may have been written to.
  [[nodiscard]] std::uint64_t generation(StagingId id) const;

  /// A file below the directory of which the disk did not take some bytes, which the kernel tells
  /// once, to whoever asks first, or may have lost some in a power cut (load.cpp); until it is
  /// truncated to nothing.
  [[nodiscard]] std::optional<std::string> find_lost(StagingId directory) const;
  [[nodiscard]] bool is_lost(StagingId file) const;
  /// All files below the directory, or this one, may be such ones.  That is recorded, or, if there
  /// is no room, with the next change.  Unknown ids are ignored.
  void note_lost(StagingId directory);
  void note_lost_file(StagingId file);

  /// Moves a directory from staging to the publish root, in one synced write with other changes of
  /// the database.  EBUSY if the name is taken there.
  void hand_over(StagingId directory, std::string_view new_name, std::vector<Db::Change> also);

  /// The reverse: moves into /staging.  EEXIST, ENOTEMPTY ... as rename(2) with RENAME_NOREPLACE.
  void take_back(StagingId directory, StagingId new_parent, std::string_view new_name,
                 std::vector<Db::Change> also);

  /// Allows unlink() and remove_directory() below that directory of the publish root.
  void allow_removal(StagingId directory);

  /// Ends a hand-over that was published. Removes the records of the `published` files, and moves
  /// all other files and symlinks back to /staging: to `origin`, or, if that name is taken, to
  /// "NAME.unpublished-<number>" (then "-<number>.2" ...) beside it; to /staging itself if the
  /// origin's directory is gone or sealed. Creates directories as needed; empty ones vanish.  One
  /// synced write, with `also`. Then removes the backing files of `published`; those that are open
  /// are removed at their last release, and remain readable and unchanged until then.
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
