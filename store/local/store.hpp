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
// What is kept in it is recorded by four parts, each with its own header: ManifestTable,
// ImageTable, DeltaTable, and what staging and the publish queue keep in the same database. Evictor
// makes room.
//
// Threads: all calls may run in parallel.
// Ownership: owns its parts and the lock of the directory; must outlive all that keeps a reference.
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
#include "store/local/db.hpp"
#include "store/local/delta_table.hpp"
#include "store/local/eviction.hpp"
#include "store/local/evictor.hpp"
#include "store/local/image_table.hpp"
#include "store/local/manifest_table.hpp"
#include "store/local/store_directory.hpp"
#include "store/local/store_limits.hpp"
#include "store/os/file.hpp"

namespace weightfs {

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
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

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

  /// Which versions may go, and who is asked.
  [[nodiscard]] Eviction& eviction() noexcept { return eviction_; }
  /// Makes room.
  [[nodiscard]] Evictor& evictor() noexcept { return evictor_; }

  // ---- shorthands: the calls of the same name of manifests() and images() ----

  [[nodiscard]] std::optional<std::string> find_manifest(std::uint64_t version) const {
    return manifests().find_manifest(version);
  }
  void put_manifest(std::uint64_t version, std::string_view bytes) {
    manifests().put_manifest(version, bytes);
  }
  [[nodiscard]] std::vector<std::uint64_t> manifest_numbers() const {
    return manifests().manifest_numbers();
  }
  [[nodiscard]] std::optional<std::string> find_layout(const Sha256& id) const {
    return manifests().find_layout(id);
  }
  void put_layout(const Sha256& id, std::string_view bytes) { manifests().put_layout(id, bytes); }
  [[nodiscard]] std::set<Sha256> layout_ids() const { return manifests().layout_ids(); }
  void remove_layouts(std::span<const Sha256> ids) { manifests().remove_layouts(ids); }
  [[nodiscard]] Newest newest() const { return manifests().newest(); }
  void put_newest(const Newest& newest) { manifests().put_newest(newest); }

  [[nodiscard]] std::vector<std::uint64_t> complete_versions() const {
    return images().complete_versions();
  }
  [[nodiscard]] bool is_complete(std::uint64_t version) const {
    return images().is_complete(version);
  }
  [[nodiscard]] std::vector<bool> absent_files(std::uint64_t version) const {
    return images().absent_files(version);
  }
  [[nodiscard]] bool has_all_files(std::uint64_t version) const {
    return images().has_all_files(version);
  }
  [[nodiscard]] std::vector<std::uint64_t> chunk_hashes(std::uint64_t version) const {
    return images().chunk_hashes(version);
  }
  [[nodiscard]] std::filesystem::path image_directory(std::uint64_t version) const {
    return images().image_directory(version);
  }
  [[nodiscard]] ImagesLock lock_images(const Context& context) {
    return images().lock_images(context);
  }
  std::filesystem::path begin_images(std::uint64_t version) {
    return images().begin_images(version);
  }
  void complete_images(std::uint64_t version, std::span<const std::uint64_t> file_sizes,
                       std::span<const std::uint64_t> chunk_hashes,
                       const std::vector<bool>& absent = {}) {
    images().complete_images(version, file_sizes, chunk_hashes, absent);
  }
  void remove_images(std::uint64_t version) { images().remove_images(version); }
  void begin_partial(std::uint64_t version, std::uint64_t bytes, Eviction::Files files) {
    images().begin_partial(version, bytes, std::move(files));
  }
  void end_partial(std::uint64_t version) noexcept { images().end_partial(version); }
  void set_partial_error(std::uint64_t version, std::optional<Error> error) {
    images().set_partial_error(version, std::move(error));
  }
  [[nodiscard]] bool is_partial(std::uint64_t version) const {
    return images().is_partial(version);
  }
  void wait_partial(std::uint64_t version, const Context& context) {
    images().wait_partial(version, context);
  }
  [[nodiscard]] std::uint64_t image_bytes() const { return images().image_bytes(); }

 private:
  // Made together, and again when the database turns out to be damaged.
  struct Tables {
    Tables(const StoreDirectory& directory, const StoreMarker& marker,
           const std::function<Space()>& space);

    std::unique_ptr<Db> db;
    ManifestTable manifests;
    ImageTable images;
    DeltaTable deltas;
  };

  Store(StoreDirectory directory, const StoreMarker& marker, StoreLimits limits,
        const std::function<Space()>& space);
  static std::unique_ptr<Tables> open_tables(StoreDirectory& directory, const StoreMarker& marker,
                                             const std::function<Space()>& space);

  StoreDirectory directory_;
  Eviction eviction_;
  std::unique_ptr<Tables> tables_;
  Evictor evictor_;
};

}  // namespace weightfs
