// ImageTable: the images that a store has, <store>/images/<v>/<path>, and what is recorded of them.
//
//     absent ---- begin() ---- complete() ----> complete
//       |                                          ^
//       +------ begin_partial() ---> partial ------+
//
// A version is complete when the files are here that its host keeps
// (store/materialize/file_filter.hpp); those of the others are absent, and nothing lies under their
// names.  The records of a version become complete in one write, after its files and directories
// were synced.  Files without such a record are removed when the store is opened.  A partial
// version is known in memory only (store/streaming/partial_images.hpp).
//
// Threads: all calls may run in parallel.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/db.hpp"
#include "store/local/eviction.hpp"
#include "store/local/images_lock.hpp"

namespace weightfs {

class ImageTable {
 public:
  /// Reads the records, compares them with the files, and removes files that have none.  Keeps the
  /// reference.
  /// `directory`: of the images.  `temporary`: on the same file system.  Requires: both exist.
  /// Throws Error: corrupt, io; std::filesystem::filesystem_error.
  ImageTable(Db& db, std::filesystem::path directory, std::filesystem::path temporary);

  /// <store>/images/<v>.
  [[nodiscard]] std::filesystem::path image_directory(std::uint64_t version) const;

  // ---- complete versions ----

  /// Versions whose images are complete, ascending: all of them, or those that a host keeps.
  [[nodiscard]] std::vector<std::uint64_t> complete_versions() const;
  [[nodiscard]] bool is_complete(std::uint64_t version) const;

  /// The files of a complete version that are absent, in the order of complete_images(); empty if
  /// none is, or if the version is not complete.
  [[nodiscard]] std::vector<bool> absent_files(std::uint64_t version) const;
  /// Whether the version is complete and no file of it is absent.
  [[nodiscard]] bool has_all_files(std::uint64_t version) const;

  /// Chunk hashes of a complete version, also of its absent files.  Throws Error: not_found,
  /// corrupt, io.
  [[nodiscard]] std::vector<std::uint64_t> chunk_hashes(std::uint64_t version) const;

  // ---- changes ----

  /// Waits until nobody else holds the lock.  materialize() takes it itself, so whoever holds it
  /// must not call that, nor publish(); begin_images() to complete_images() happen under it.
  /// Must not outlive this.  Throws Error: cancelled, timed_out.
  [[nodiscard]] ImagesLock lock_images(const Context& context);

  /// Makes an empty image directory for a version; removes what was there, records included.
  /// Requires: not partial.
  std::filesystem::path begin_images(std::uint64_t version);

  /// Records the files of a version as complete, in one synced write.  Of a version that is
  /// complete already the new records take the place of the old ones.
  /// `file_sizes`: of every file of the version, by path, bytewise.
  /// `absent`: those of them that are not below the image directory; empty: none.
  /// Requires: the files and their directories are synced.
  /// Throws Error: no_space (nothing was recorded); io if the directory holds other files.
  void complete_images(std::uint64_t version, std::span<const std::uint64_t> file_sizes,
                       std::span<const std::uint64_t> chunk_hashes,
                       const std::vector<bool>& absent = {});

  /// Forgets a version's images, then removes the files: first the records (synced).  Where there
  /// is no room to forget, the files go first; a record without its files counts for nothing.
  void remove_images(std::uint64_t version);

  // ---- images that are filled while they are read: store/streaming/partial_images.hpp ----

  /// The version is begun, and nobody else may begin it.  Evictor counts its files, and may evict
  /// it by `files`, whose remove() ends with end_partial(); both may be called until that.
  /// `bytes`: of all its files.
  /// Requires: lock_images() is held; not complete, not partial.
  void begin_partial(std::uint64_t version, std::uint64_t bytes, Eviction::Files files);
  /// It is complete now, or given up.  Unknown versions are ignored.
  void end_partial(std::uint64_t version) noexcept;
  /// Why it may never become complete; nullopt: that was fixed.
  void set_partial_error(std::uint64_t version, std::optional<Error> error);
  [[nodiscard]] bool is_partial(std::uint64_t version) const;
  /// Waits while the version is partial.  Throws Error: what set_partial_error() was told last;
  /// cancelled, timed_out.
  void wait_partial(std::uint64_t version, const Context& context);

  /// The first begun first.
  [[nodiscard]] std::vector<std::uint64_t> partial_versions() const;
  /// As begin_partial() was told; nullopt if it is not partial.
  [[nodiscard]] std::optional<Eviction::Files> partial_files(std::uint64_t version) const;

  // ---- sizes ----

  /// Bytes of several versions on disk; what they share by hard links counts once.
  [[nodiscard]] std::uint64_t bytes_of(const std::vector<std::uint64_t>& versions) const;
  /// Bytes of all complete images.
  [[nodiscard]] std::uint64_t image_bytes() const { return bytes_of(complete_versions()); }
  /// Bytes of the newest complete version, or of a partial one if that has more; 0: there is none.
  [[nodiscard]] std::uint64_t newest_bytes() const;

 private:
  struct Partial {
    std::uint64_t order = 0;  // in which they were begun
    std::uint64_t bytes = 0;
    Eviction::Files files;
    /// As text: an exception must not be shared by threads.
    std::optional<std::pair<ErrorCode, std::string>> error;
  };

  void load();
  void remove_strays() const;

  Db& db_;
  const std::filesystem::path directory_, temporary_;
  RankedMutex lock_mutex_{LockRank::leaf, "ImageTable::lock_mutex_"};  // guards the next one
  bool is_locked_ = false;
  std::condition_variable_any unlocked_;
  mutable RankedMutex mutex_{LockRank::store, "ImageTable::mutex_"};  // guards what follows
  std::condition_variable_any partial_changed_;
  std::uint64_t partials_begun_ = 0;
  std::map<std::uint64_t, Partial> partial_;
  std::map<std::uint64_t, std::vector<bool>> complete_;  // version -> absent_files()
};

}  // namespace weightfs
