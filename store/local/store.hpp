// Store: the local directory of one daemon or publisher.
//
//     <store>/STORE              marker: this directory is a weightfs store
//     <store>/lock               flock(2), held while the store is open; says who holds it
//     <store>/db/                RocksDB: store/database/column_families.hpp
//     <store>/images/<v>/<path>  what readers read through the passthrough
//     <store>/deltas/            changes as files: store/local/delta_table.hpp
//     <store>/small/<sha256>     small files that patches need: store/local/small_files.hpp
//     <store>/staging/<id>       bytes of staged files: store/staging/staging.hpp
//     <store>/handover/<nonce>/  links to staged files: store/handover/publish_queue.hpp
//     <store>/tmp/               spools; emptied when the store is opened
//     <store>/weightfs.log       when daemonised
//
// With use_memory() new images lie in memory instead, and in <store>/images only their base.
//
// The store is a cache, except for what trainers have staged.  A store of another format, or with a
// damaged database, is emptied and rebuilt from the bucket. Only the names above are ever removed;
// staged files are then kept under <store>/staging.lost-<k>, with a warning in the log.
//
// Its contents are recorded by six parts, each with its own header: ManifestTable, ImageTable,
// DeltaTable, TimingTable, PatchTable, and what staging and the publish queue keep in the same
// database. Evictor makes room.
//
// Threads: all calls may run in parallel.
// Ownership: owns its parts and the lock of the directory; must outlive whatever refers to it.
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

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/sha256.hpp"
#include "store/database/db.hpp"
#include "store/local/delta_table.hpp"
#include "store/local/early_images.hpp"
#include "store/local/eviction.hpp"
#include "store/local/evictor.hpp"
#include "store/local/image_table.hpp"
#include "store/local/manifest_table.hpp"
#include "store/local/small_files.hpp"
#include "store/local/store_directory.hpp"
#include "store/local/store_limits.hpp"
#include "store/local/timing_table.hpp"
#include "store/local/wanted_deltas.hpp"
#include "store/os/file.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/patches/patch_table.hpp"

namespace weightfs {

class Store {
 public:
  /// Default location: /var/lib/weightfs/<id> for root, else $XDG_CACHE_HOME/weightfs/<id>
  /// (~/.cache/weightfs/<id>).
  static std::filesystem::path default_path(std::string_view repository_id);

  /// The identity recorded in a store, without opening it; nullopt if `path` is not a store.
  struct Identity {
    std::string repository, url;
  };
  static std::optional<Identity> find_identity(const std::filesystem::path& path);

  /// This user's default store for `url`, for when the bucket is unreachable.
  static std::optional<std::filesystem::path> find_default_by_url(std::string_view url);

  /// This user's default stores of other repositories that were at `url`, in the order of their
  /// paths: nobody uses these any more, once `repository` is there.
  static std::vector<std::filesystem::path> find_defaults_of_others(std::string_view url,
                                                                    std::string_view repository);

  /// Opens the store, or creates it with mode 0700, and takes its lock.
  /// On a full disk it still serves what it has, and writes the records later.
  /// `space` returns the space of the file system; empty: asks it.
  /// Throws Error, which says what to do where that is known: busy (names the holder's pid),
  /// invalid (not empty and not a store; another repository's), permission (another owner's),
  /// read_only, no_space (a new one), io.
  static std::unique_ptr<Store> open(const std::filesystem::path& path, std::string_view repository,
                                     std::string_view url, StoreLimits limits,
                                     std::function<Space()> space = {});
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// New versions lie in memory from now on (ImageTable::use_memory).  `find_room`: as
  /// find_memory_room().  Requires: nobody uses the store yet.
  /// Throws Error: what ImageMemory() and Evictor::require_memory() throw.
  void use_memory(Evictor::FindRoom find_room);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return directory_.path(); }
  [[nodiscard]] std::filesystem::path temporary_directory() const { return path() / "tmp"; }
  [[nodiscard]] std::filesystem::path log_path() const { return path() / "weightfs.log"; }

  /// The database, for the parts of the store that have families of their own.
  [[nodiscard]] Db& db() noexcept { return *tables_->db; }

  [[nodiscard]] ManifestTable& manifests() noexcept { return tables_->manifests; }
  [[nodiscard]] const ManifestTable& manifests() const noexcept { return tables_->manifests; }
  [[nodiscard]] ImageTable& images() noexcept { return tables_->images; }
  [[nodiscard]] const ImageTable& images() const noexcept { return tables_->images; }
  [[nodiscard]] DeltaTable& deltas() noexcept { return tables_->deltas; }
  [[nodiscard]] const DeltaTable& deltas() const noexcept { return tables_->deltas; }
  /// Which deltas are made ahead.
  [[nodiscard]] WantedDeltas& wanted_deltas() noexcept { return wanted_deltas_; }
  [[nodiscard]] TimingTable& timings() noexcept { return tables_->timings; }
  [[nodiscard]] const TimingTable& timings() const noexcept { return tables_->timings; }

  [[nodiscard]] PatchTable& patches() noexcept { return tables_->patches; }
  [[nodiscard]] const PatchTable& patches() const noexcept { return tables_->patches; }
  /// Changes of versions that were made a moment ago.
  [[nodiscard]] FreshPatches& fresh_patches() noexcept { return fresh_patches_; }
  [[nodiscard]] SmallFiles& small_files() noexcept { return small_files_; }

  /// Files of the version that comes next.
  [[nodiscard]] EarlyImages& early_images() noexcept { return early_images_; }

  /// Decides which versions may be evicted.
  [[nodiscard]] Eviction& eviction() noexcept { return eviction_; }
  /// Makes room.
  [[nodiscard]] Evictor& evictor() noexcept { return evictor_; }

 private:
  // Opened together, and again if the database turns out to be damaged.
  struct Tables {
    Tables(const StoreDirectory& directory, const StoreMarker& marker,
           const std::function<Space()>& space);

    std::unique_ptr<Db> db;
    ManifestTable manifests;
    ImageTable images;
    DeltaTable deltas;
    TimingTable timings;
    PatchTable patches;
  };

  Store(StoreDirectory directory, const StoreMarker& marker, StoreLimits limits,
        const std::function<Space()>& space);
  /// Without what to do about errors.
  static std::unique_ptr<Store> open_as_is(const std::filesystem::path& path,
                                           std::string_view repository, std::string_view url,
                                           StoreLimits limits, std::function<Space()> space);
  static std::unique_ptr<Tables> open_tables(StoreDirectory& directory, const StoreMarker& marker,
                                             const std::function<Space()>& space);

  StoreDirectory directory_;
  SmallFiles small_files_;
  FreshPatches fresh_patches_;
  Eviction eviction_;
  std::unique_ptr<Tables> tables_;
  EarlyImages early_images_;  // in the memory of the tables' images, if that is their home
  Evictor evictor_;
  WantedDeltas wanted_deltas_;  // its unfinished ones use the tables
};

}  // namespace weightfs
