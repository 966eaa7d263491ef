// Store: the local directory of one daemon or publisher.
//
//     <store>/STORE              marker: this directory is a weightfs store
//     <store>/lock               flock(2), held while the store is open; says who holds it
//     <store>/db/                RocksDB: store/local/column_families.hpp
//     <store>/images/<v>/<path>  what readers read through the passthrough
//     <store>/deltas/<v>.safetensors  changes from v - 1: store/inspect/delta_files.hpp
//     <store>/staging/<id>       bytes of staged files: store/staging/staging.hpp
//     <store>/handover/<nonce>/  links to staged files: store/handover/publish_queue.hpp
//     <store>/tmp/               spools; emptied when the store is opened
//     <store>/weightfs.log       when daemonised
//
// The store is a cache, but for what trainers have staged.  One of another format, or whose
// database is damaged, is emptied and rebuilt from the bucket; only the names above are ever
// removed, and staged files are then kept under <store>/staging.lost-<k>, with a warning in the
// log.
//
// A record decides what an image is: absent (none, or one that says so), partial, or complete.
// Files without a complete record are removed when the store is opened.  A version is complete when
// the files are that its host keeps (store/materialize/file_filter.hpp): those of the others are
// absent, and nothing lies under their names.  The records of a version become complete in one
// write, after its files and directories were synced.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/local/db.hpp"
#include "store/local/eviction.hpp"
#include "store/os/file.hpp"

namespace weightfs {

struct StoreLimits {
  /// Bytes of images to keep; nullopt: 3 x the newest version.
  std::optional<std::uint64_t> store_bytes;
  /// Free bytes to leave on the file system; nullopt: the smaller of 5 % and 10 GiB.  Never less
  /// than kRecordsFloorBytes: what is written must be recorded after.
  std::optional<std::uint64_t> free_bytes_min;
};

/// The highest version whose manifest was accepted, against rollback.
struct Newest {
  std::uint64_t version = 0;
  Sha256 manifest_sha256{};
};

/// Held while versions are brought into a store or adopted: one caller at a time.  Belongs to no
/// thread; given up when it is destroyed.
class ImagesLock {
 public:
  ImagesLock() = default;  // holds nothing
  explicit ImagesLock(std::function<void()> unlock) : unlock_(std::move(unlock)) {}
  ImagesLock(ImagesLock&& other) noexcept : unlock_(std::exchange(other.unlock_, nullptr)) {}
  ImagesLock& operator=(ImagesLock&& other) noexcept {
    if (this == &other) return *this;
    unlock();
    unlock_ = std::exchange(other.unlock_, nullptr);
    return *this;
  }
  ~ImagesLock() { unlock(); }

  void unlock() noexcept {
    if (auto give_up = std::exchange(unlock_, nullptr)) give_up();
  }
  explicit operator bool() const noexcept { return static_cast<bool>(unlock_); }

 private:
  std::function<void()> unlock_;
};

class Store {
 public:
  /// Default place: /var/lib/weightfs/<id> for root, else $XDG_CACHE_HOME/weightfs/<id>
  /// (~/.cache/weightfs/<id>).
  static std::filesystem::path default_path(std::string_view repository_id);

  /// What a store remembers, without opening it; nullopt if `path` is no store.
  struct Identity {
    std::string repository, url;
  };
  static std::optional<Identity> find_identity(const std::filesystem::path& path);

  /// The default store of this user that remembers `url`, for when the bucket is out of reach.
  static std::optional<std::filesystem::path> find_default_by_url(std::string_view url);

  /// Opens or makes the store, made 0700, and takes its lock.
  /// On a full disk it still serves what it has, and makes up for the records later.
  /// `space` tells the space of the file system; empty: asks it.
  /// Throws Error: busy (names the holder's pid), invalid (not empty and no store; another
  /// repository's), permission (another owner's), no_space (a new one), io.
  static std::unique_ptr<Store> open(const std::filesystem::path& path, std::string_view repository,
                                     std::string_view url, StoreLimits limits,
                                     std::function<Space()> space = {});
  virtual ~Store() = default;

  [[nodiscard]] virtual const std::filesystem::path& path() const noexcept = 0;
  [[nodiscard]] std::filesystem::path temporary_directory() const { return path() / "tmp"; }
  [[nodiscard]] std::filesystem::path log_path() const { return path() / "weightfs.log"; }

  /// The database, for the parts of the store that have families of their own.
  [[nodiscard]] virtual Db& db() noexcept = 0;

  // ---- records ----

  [[nodiscard]] virtual std::optional<std::string> find_manifest(std::uint64_t version) const = 0;
  /// This and put_layout() survive the end of the process; a power cut from the next synced record
  /// on, which every version ends with that comes to be complete.
  virtual void put_manifest(std::uint64_t version, std::string_view bytes) = 0;

  /// Numbers of all manifests kept here, ascending.
  [[nodiscard]] virtual std::vector<std::uint64_t> manifest_numbers() const = 0;

  [[nodiscard]] virtual std::optional<std::string> find_layout(const Sha256& id) const = 0;
  virtual void put_layout(const Sha256& id, std::string_view bytes) = 0;
  /// Reads the records of all layouts, which may be large.
  [[nodiscard]] virtual std::set<Sha256> layout_ids() const = 0;
  virtual void remove_layouts(std::span<const Sha256> ids) = 0;

  [[nodiscard]] virtual Newest newest() const = 0;

  /// Durable.  A lower version than newest() changes nothing.
  virtual void put_newest(const Newest& newest) = 0;

  // ---- images ----

  /// Versions whose images are complete, ascending: all of them, or those that a host keeps.
  [[nodiscard]] virtual std::vector<std::uint64_t> complete_versions() const = 0;
  [[nodiscard]] virtual bool is_complete(std::uint64_t version) const = 0;

  /// The files of a complete version that are absent, in the order of complete_images(); empty if
  /// none is, or if the version is not complete.
  [[nodiscard]] virtual std::vector<bool> absent_files(std::uint64_t version) const = 0;
  /// Whether the version is complete and no file of it is absent.
  [[nodiscard]] bool has_all_files(std::uint64_t version) const {
    return is_complete(version) && absent_files(version).empty();
  }

  /// Chunk hashes of a complete version, also of its absent files.  Throws Error: not_found.
  [[nodiscard]] virtual std::vector<std::uint64_t> chunk_hashes(std::uint64_t version) const = 0;

  /// <store>/images/<v>.
  [[nodiscard]] virtual std::filesystem::path image_directory(std::uint64_t version) const = 0;

  /// Waits until nobody else holds the lock.  materialize() takes it itself, so whoever holds it
  /// must not call that, nor publish(); begin_images() to complete_images() happen under it.
  /// Must not outlive the store.  Throws Error: cancelled, timed_out.
  [[nodiscard]] virtual ImagesLock lock_images(const Context& context) = 0;

  /// Makes an empty image directory for a version; removes what was there, records included.
  virtual std::filesystem::path begin_images(std::uint64_t version) = 0;

  /// Records the files of a version as complete, in one synced write.  Of a version that is
  /// complete already the new records take the place of the old ones.
  /// `file_sizes`: of every file of the version, by path, bytewise.
  /// `absent`: those of them that are not below the image directory; empty: none.
  /// Requires: the files and their directories are synced.
  /// Throws Error: no_space (nothing was recorded); io if the directory holds other files.
  virtual void complete_images(std::uint64_t version, std::span<const std::uint64_t> file_sizes,
                               std::span<const std::uint64_t> chunk_hashes,
                               const std::vector<bool>& absent = {}) = 0;

  /// Forgets a version's images, then removes the files: first the records (synced).  Where there
  /// is no room to forget, the files go first; a record without its files counts for nothing.
  virtual void remove_images(std::uint64_t version) = 0;

  // ---- images that are filled while they are read: store/streaming/partial_images.hpp ----

  /// The version is begun, and nobody else may begin it: make_room() counts its files, and may
  /// evict it by `files`, whose remove() ends with end_partial(); both may be called until that.
  /// `bytes`: of all its files.
  /// Requires: lock_images() is held; not complete, not partial.
  virtual void begin_partial(std::uint64_t version, std::uint64_t bytes, Eviction::Files files) = 0;
  /// It is complete now, or given up.  Unknown versions are ignored.
  virtual void end_partial(std::uint64_t version) noexcept = 0;
  /// Why it may never become complete; nullopt: that was mended.
  virtual void set_partial_error(std::uint64_t version, std::optional<Error> error) = 0;
  [[nodiscard]] virtual bool is_partial(std::uint64_t version) const = 0;
  /// Waits while the version is partial.  Throws Error: what set_partial_error() was told last;
  /// cancelled, timed_out.
  virtual void wait_partial(std::uint64_t version, const Context& context) = 0;

  // ---- deltas as files ----

  /// <store>/deltas/<v>.safetensors, if it is complete.  It may go at any time: who has it open
  /// keeps it.
  [[nodiscard]] virtual std::optional<std::filesystem::path> find_delta(
      std::uint64_t version) const = 0;

  /// Makes room for a file of `bytes` as make_room() does, and counts it from now on.
  /// Returns: where it is to be written, a new name below temporary_directory().
  /// Requires: it is neither complete nor begun.
  virtual std::filesystem::path begin_delta(std::uint64_t version, std::uint64_t bytes) = 0;

  /// Names the file that begin_delta() told of, then records it.
  /// Requires: begun; the file is synced.  Throws Error: io if its size is another; no_space.
  virtual void complete_delta(std::uint64_t version, const std::filesystem::path& file) = 0;

  /// Counts it no more, and removes what was written.  Nothing if it was completed.
  virtual void abandon_delta(std::uint64_t version, const std::filesystem::path& file) noexcept = 0;

  /// Of all that are complete or begun.
  [[nodiscard]] virtual std::uint64_t delta_bytes() const = 0;

  // ---- space ----

  /// Which versions may go, and who is asked.
  [[nodiscard]] virtual Eviction& eviction() noexcept = 0;

  /// Makes room for a new version of `bytes`: removes deltas that nobody reads, then evicts
  /// versions until both limits hold: those that are being filled, the first begun first, then
  /// complete ones, oldest first.  Versions that do not go because somebody uses them do not count
  /// against StoreLimits::store_bytes.  Removes nothing if all that may go would not be enough.
  ///
  /// Throws Error: no_space, saying how much is missing and which limit it was.
  /// `version_bytes`: what the version has in the end, if that is more than `bytes`.
  virtual void make_room(std::uint64_t bytes, std::uint64_t version_bytes = 0) = 0;

  /// The same for bytes that are no images, as those that trainers stage: only the limit of free
  /// space counts.  Cheap where there is room.
  virtual void make_free(std::uint64_t bytes) = 0;

  /// Evicts one complete version if the rule allows it.  Returns: whether it is gone.
  virtual bool evict(std::uint64_t version) = 0;

  /// Bytes of all complete images, hard links counted once.
  [[nodiscard]] virtual std::uint64_t image_bytes() const = 0;
};

}  // namespace weightfs
