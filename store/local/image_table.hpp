// ImageTable: the images that a store has, <store>/images/<v>/<path>, and their records.
//
//     absent ---- begin() ---- complete() ----> complete, unsynced ---- mark_synced() ----> synced
//       |                                          ^
//       +------ begin_partial() ---> partial ------+
//
// A version is complete when the files are here that its host keeps
// (store/materialize/file_filter.hpp); those of the others are absent, and nothing lies under their
// names.
//
// Nothing is synced before a version is complete, so that readers need not wait for a disk.  A
// complete version is *unsynced* until somebody has synced its files and directories
// (store/local/sync_images.hpp) and says so.  Its bytes may not survive a power cut, and recorded
// sizes prove nothing: a file system may give back zeros.  So:
//
//   * a record of the version that was there before is removed, durably, before new files lie under
//     its names (begin_images);
//   * when the store is opened, a version that is recorded and not synced is *unchecked*: it is not
//     complete before somebody has compared its bytes with its hashes
//     (store/materialize/check_images.hpp).  So is a synced one with a file that was written to
//     later, by its time (store/local/image_times.hpp): one that is half written in a copy of the
//     store, say;
//   * files without a record are removed when the store is opened.
//
// A partial version is known in memory only (store/streaming/partial_images.hpp).
//
// With use_memory() new versions may lie in memory (store/local/image_memory.hpp).  Nothing of them
// is recorded, so the next process knows nothing of them; they have nothing to sync. keep_on_disk()
// adds a copy on the disk, which is recorded: such a version is in both places, is read from
// memory, and is on the disk only when it has left the memory.
//
// Threads: all calls may run in parallel.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"
#include "store/local/eviction.hpp"
#include "store/local/image_memory.hpp"
#include "store/local/image_records.hpp"
#include "store/local/images_lock.hpp"

namespace weightfs {

/// Where the files of a version are.
enum class ImagesHome { disk, memory };

class ImageTable {
 public:
  /// Reads the records, compares them with the files, and removes files without a record.  Keeps
  /// the reference.
  /// `directory`: of the images.  `temporary`: on the same file system.  Requires: both exist.
  /// Throws Error: corrupt, io; std::filesystem::filesystem_error.
  ImageTable(Db& db, std::filesystem::path directory, std::filesystem::path temporary);

  /// <store>/images/<v>, or where the version is in memory.
  [[nodiscard]] std::filesystem::path image_directory(std::uint64_t version) const;

  // ---- complete versions ----

  /// Versions whose images are complete, ascending.
  [[nodiscard]] std::vector<std::uint64_t> complete_versions() const;
  [[nodiscard]] bool is_complete(std::uint64_t version) const;

  /// The files of a complete or unchecked version that are absent, in the order of
  /// complete_images(); empty if none is, or if the version is neither.
  [[nodiscard]] std::vector<bool> absent_files(std::uint64_t version) const;
  /// Whether the version is complete and no file of it is absent.
  [[nodiscard]] bool has_all_files(std::uint64_t version) const;

  /// Chunk hashes of a complete or unchecked version, also of its absent files.  Throws Error:
  /// not_found, corrupt, io.
  [[nodiscard]] std::vector<std::uint64_t> chunk_hashes(std::uint64_t version) const;

  // ---- changes ----

  /// Waits until the lock is free.  materialize() takes it itself, so the holder must call neither
  /// that nor publish(); begin_images() to complete_images() happen under it.  Must not outlive
  /// this.  Does remove_leftovers().
  /// Throws Error: cancelled, timed_out.
  [[nodiscard]] ImagesLock lock_images(const Context& context);

  /// Removes the files of what forget_images() forgot and nobody makes again: nothing counts them.
  /// Requires: lock_images().
  void remove_leftovers() noexcept;

  /// Makes an empty image directory for a version; removes what was there, records included: these
  /// durably.  Requires: not partial; `home` is memory only after use_memory().
  /// Throws Error: no_space (what was recorded of the version cannot be forgotten), io.
  std::filesystem::path begin_images(std::uint64_t version, ImagesHome home = ImagesHome::disk);

  /// Records the files of a version as complete and unsynced, in one write that waits for no disk;
  /// of a version in memory nothing is written. Of a version that is complete already the new
  /// records take the place of the old ones.
  /// `file_sizes`: of every file of the version, by path, bytewise.
  /// `absent`: those of them that are not below the image directory; empty: none.
  /// Throws Error: no_space (nothing was recorded); io if the directory holds other files.
  void complete_images(std::uint64_t version, std::span<const std::uint64_t> file_sizes,
                       std::span<const std::uint64_t> chunk_hashes,
                       const std::vector<bool>& absent = {});

  /// Files of these paths are to be moved below the image directory of a complete version, which
  /// complete_images() then records.  Until then whoever opens the store removes them where the
  /// version is not what its records say, so that a crash costs only these files.  That record may
  /// outlive a power cut: they are to be on the disk before it.  Durable; of a version in memory
  /// nothing is written.
  /// Throws Error: no_space, io.
  void announce_files(std::uint64_t version, std::span<const std::string> paths);

  /// Forgets a version's images, then removes the files.  Where there is no room to forget, the
  /// files go all the same; a record without its files counts for nothing.  A version in memory
  /// leaves only that: it stays complete if it is on the disk too.
  void remove_images(std::uint64_t version);

  // ---- images in memory ----

  /// Requires: nobody uses this yet; once at most.
  void use_memory(std::unique_ptr<ImageMemory> memory);
  /// nullptr: images are on the disk only.
  [[nodiscard]] const ImageMemory* memory() const noexcept { return memory_.get(); }

  /// Where the next version is to be made: on the disk if that is the only place, and while the
  /// store has no version, which then becomes the base of those in memory.
  [[nodiscard]] ImagesHome home_of_next() const;
  /// Directories of a home: of all images, and for scratch files beside them.
  [[nodiscard]] std::filesystem::path directory_of(ImagesHome home) const;
  [[nodiscard]] std::filesystem::path temporary_of(ImagesHome home) const;
  /// Of a version that is complete or begun.
  [[nodiscard]] ImagesHome home_of(std::uint64_t version) const;

  /// Complete versions in memory, and on the disk, ascending; some are in both.
  [[nodiscard]] std::vector<std::uint64_t> versions_in_memory() const;
  [[nodiscard]] std::vector<std::uint64_t> versions_on_disk() const;
  /// With use_memory(): the version on the disk from which a restart makes the newest: the newest
  /// one there, if possible a synced one.  0: there is none.
  [[nodiscard]] std::uint64_t base_version() const;

  /// `copy`, a directory on the store's disk with the files of a version in memory, becomes its
  /// images on the disk, recorded as synced; durable.
  /// Returns: false if the version in memory is not that of `generation` any more, or is on the
  /// disk already; nothing was changed then.
  /// Requires: the version is reserved, so that nobody makes it anew; files and directories of
  /// `copy` are synced.
  /// Throws Error: no_space, io; nothing is left of the copy then, unless only the last step
  /// failed: then it is there, but a power cut may take it.
  bool keep_on_disk(std::uint64_t version, std::uint64_t generation,
                    const std::filesystem::path& copy);
  /// Removes the copy on the disk of a version that is in memory too; nobody reads it.  Without
  /// room to forget it, the files go all the same.
  void remove_copy(std::uint64_t version);

  // ---- what a power cut may take ----

  /// Complete versions that are not synced, ascending.
  [[nodiscard]] std::vector<std::uint64_t> unsynced_versions() const;

  /// Which images of the version these are: another number whenever complete_images() recorded
  /// some, so that what was found of these is not said of later ones.  0: it is not complete.
  [[nodiscard]] std::uint64_t generation(std::uint64_t version) const;

  /// Records a version as synced; durable.  Returns: false, and does nothing, if its images are not
  /// those of `generation` any more.
  /// Requires: its files, their directories and the directory of all images are synced.
  /// Throws Error: no_space, io (it is checked when the store is opened).
  bool mark_synced(std::uint64_t version, std::uint64_t generation);

  /// Forgets a version whose files the disk did not take, or which are damaged; whoever holds
  /// lock_images() next removes them.  It is not complete any more, also if the rest fails, which
  /// is logged.  Returns: false if its images are not those of `generation` any more.
  bool forget_images(std::uint64_t version, std::uint64_t generation);

  /// Versions that were recorded and not synced when the store was opened, or written to later,
  /// ascending; none of them is complete.
  [[nodiscard]] std::vector<std::uint64_t> unchecked_versions() const;
  /// The files of an unchecked version are right: it is complete now, and unsynced.
  void accept_unchecked(std::uint64_t version);

  // ---- images that are filled while they are read: store/streaming/partial_images.hpp ----

  /// Marks the version as partial, so that nobody else begins it.  Evictor counts its files, and
  /// may evict it through `files`, whose remove() ends with end_partial(); both functions may be
  /// called until then.
  /// `bytes`: of all its files.
  /// Requires: lock_images() is held; not complete, not partial.
  void begin_partial(std::uint64_t version, std::uint64_t bytes, Eviction::Files files);
  /// The version is now complete or abandoned.  Unknown versions are ignored.
  void end_partial(std::uint64_t version) noexcept;
  /// Why it may never become complete; nullopt: that was fixed.
  void set_partial_error(std::uint64_t version, std::optional<Error> error);
  [[nodiscard]] bool is_partial(std::uint64_t version) const;
  /// Waits while the version is partial.  Throws Error: the last one from set_partial_error();
  /// cancelled, timed_out.
  void wait_partial(std::uint64_t version, const Context& context);

  /// In the order in which they were begun.
  [[nodiscard]] std::vector<std::uint64_t> partial_versions() const;
  /// The `files` of begin_partial(); nullopt if it is not partial.
  [[nodiscard]] std::optional<Eviction::Files> partial_files(std::uint64_t version) const;

  // ---- sizes ----

  // These throw Error: io for want of memory or file descriptors.  What is gone has no bytes, nor
  // has what the disk does not tell.

  /// Bytes of several versions in one place; hard-linked files count once.
  [[nodiscard]] std::uint64_t bytes_of(const std::vector<std::uint64_t>& versions,
                                       ImagesHome home = ImagesHome::disk) const;
  /// Bytes of all complete images on the disk, and in memory.
  [[nodiscard]] std::uint64_t image_bytes() const { return bytes_of(versions_on_disk()); }
  [[nodiscard]] std::uint64_t memory_bytes() const {
    return bytes_of(versions_in_memory(), ImagesHome::memory);
  }
  /// Bytes of the newest complete version, or of a larger partial one; 0: there is none.
  [[nodiscard]] std::uint64_t newest_bytes() const;

 private:
  struct Partial {
    std::uint64_t order = 0;  // order of begin_partial() calls
    std::uint64_t bytes = 0;
    Eviction::Files files;
    /// As text, because an exception object must not be shared between threads.
    std::optional<std::pair<ErrorCode, std::string>> error;
  };

  /// What is recorded of a version on the disk.
  struct InMemory {
    ImageRecords images;
    std::vector<std::uint64_t> hashes;
  };

  struct Complete {
    std::vector<bool> absent;  // absent_files()
    bool is_synced = false;    // what is on the disk
    std::uint64_t generation = 0;
    std::shared_ptr<const InMemory> in_memory = nullptr;
    bool is_on_disk = true;
  };

  void load();
  static void remove_coming_files(const std::filesystem::path& directory,
                                  const std::vector<std::string>& paths);
  void remove_strays() const;
  std::set<std::uint64_t> take_leftovers();
  void remove_from_memory(std::uint64_t version);
  [[nodiscard]] bool is_in_memory_only(std::uint64_t version, std::uint64_t generation) const;
  bool record_copy(std::uint64_t version, std::uint64_t generation);
  void forget(std::uint64_t version);
  void forget_if_there_is_room(std::uint64_t version);
  void make_forgetting_durable(std::uint64_t version);
  /// All records written so far survive a power cut, so what they forget stays forgotten.
  void sync_records();

  Db& db_;
  const std::filesystem::path directory_, temporary_;
  std::unique_ptr<ImageMemory> memory_;                                // constant once in use
  RankedMutex lock_mutex_{LockRank::leaf, "ImageTable::lock_mutex_"};  // guards is_locked_
  bool is_locked_ = false;
  std::condition_variable_any unlocked_;
  // Records change together with what memory has of them; held over the write; before mutex_.
  RankedMutex records_mutex_{LockRank::store_images, "ImageTable::records_mutex_"};
  mutable RankedMutex mutex_{LockRank::store, "ImageTable::mutex_"};  // guards what follows
  std::condition_variable_any partial_changed_;
  std::uint64_t partials_begun_ = 0;
  std::map<std::uint64_t, Partial> partial_;
  std::uint64_t generations_ = 0;
  std::map<std::uint64_t, Complete> complete_;
  std::set<std::uint64_t> homed_in_memory_;               // begun or complete there
  std::map<std::uint64_t, std::vector<bool>> unchecked_;  // version -> its absent files
  std::set<std::uint64_t> forgotten_;  // by a write that a power cut may take back
  std::set<std::uint64_t> leftovers_;  // forgotten, and their files may be there
};

}  // namespace weightfs
