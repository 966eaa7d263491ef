// Sync directory: the directory of ordinary files that `weightfs sync` keeps up to date.
//
//     DIR/latest -> versions/42        replaced by rename(2), once versions/42 is complete
//     DIR/versions/42/                 hard links to the store's images; copies if the store is on
//                                      another file system
//     DIR/.weightfs/sync               marker: the directory is ours, and its repository
//     DIR/.weightfs/lock               held by the process that keeps it up to date; has its pid
//     DIR/.weightfs/status             JSON, like a mount's
//     DIR/.weightfs/advice             text, likewise
//     DIR/.weightfs/health             one line, likewise
//     DIR/.weightfs/versions/42.json   record: versions/42 is ours, its tag and its files
//     DIR/.weightfs/tmp/               what is being made or removed
//
// The record is written first; then the version is made in tmp/ and renamed when it is complete.
// To remove it, it is moved back to tmp/ before its first file is removed; the record goes last.
// So whatever a killed process leaves, the next one can repair.  What has no record is foreign and
// is never touched.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/base/context.hpp"
#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/catalog/catalog.hpp"
#include "store/catalog/follow.hpp"
#include "store/local/version_guard.hpp"
#include "store/os/file.hpp"
#include "store/os/refused_leases.hpp"

namespace weightfs::fs {

class SyncDirectory final : public VersionGuard {
 public:
  /// Takes a directory, which is made if it does not exist, and repairs what a killed process left.
  ///
  /// `keeps`: versions that must stay for now; must be quick, and may call only latest() and tag()
  /// of this object.  Called after the link `latest` was read.  Empty: none.
  /// `images`: the path of a version in the store; files linked from there may be read through
  /// either name.  Empty: nowhere.
  ///
  /// Throws Error: invalid (not empty and not ours, another repository's), busy (names the pid),
  /// permission, exists (something else has one of our names), io.
  SyncDirectory(const std::filesystem::path& path, const std::string& repository,
                const std::string& url, Follow follow = {},
                std::function<bool(std::uint64_t version)> keeps = {},
                std::function<std::filesystem::path(std::uint64_t version)> images = {});

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  struct Shown {
    std::shared_ptr<const Catalog> catalog;  // without versions that could not be brought
    /// Why, of the first; or why a version could not be removed.
    std::optional<Error> error;
  };

  /// Shows a catalog: its `latest` first, then its other versions; then removes versions that it
  /// does not have, unless they are in use or kept by `keeps`.  `latest` goes back only if
  /// something else is followed.
  ///
  /// `find_catalog` is called while release() waits, so that a released version does not come back.
  /// Throws Error, of `latest`: exists (a foreign versions/N), no_space, io; cancelled.  The
  /// directory is then as before, except that some versions may have been added.
  Shown show(const std::function<std::shared_ptr<const Catalog>()>& find_catalog,
             const Context& context);

  /// Removes a version that the store is about to remove, unless it is in use, kept or `latest`.
  /// Returns: true if it is gone.
  bool release(std::uint64_t version) override;

  /// Where `latest` leads; 0: it does not exist.  Never waits.
  [[nodiscard]] std::uint64_t latest() const;

  /// The tag of one of our versions; empty: it has none, or does not exist.  Never waits.
  [[nodiscard]] std::string tag(std::uint64_t version) const;

  /// Our versions in the directory, ascending.
  [[nodiscard]] std::vector<std::uint64_t> versions() const;

  /// Whether files had to be copied.
  [[nodiscard]] bool has_copies() const;

  /// Why versions stay that could be removed; empty: none does.
  [[nodiscard]] std::string refused_leases() const { return refused_leases_.text(); }

  /// Replaces DIR/.weightfs/status, .weightfs/health or .weightfs/advice.
  void write_status(const std::string& text) const { write_own("status", text); }
  /// The same where the status cannot be written, as far as SyncDirectoryInfo::stated goes.
  void note_alive() const noexcept;
  void write_health(const std::string& text) const { write_own("health", text); }
  void write_advice(const std::string& text) const { write_own("advice", text); }

 private:
  struct Entry {
    std::string path;
    bool is_directory = false;
  };

  void take(const std::string& repository, const std::string& url);
  void lock();
  void recover();

  void write_own(const char* name, const std::string& text) const;
  [[nodiscard]] std::filesystem::path own(const char* name) const;
  [[nodiscard]] std::filesystem::path version_path(std::uint64_t version) const;
  [[nodiscard]] std::filesystem::path record_path(std::uint64_t version) const;
  [[nodiscard]] std::filesystem::path removed_path(std::uint64_t version) const;
  [[nodiscard]] std::filesystem::path temporary(const char* name) const;

  void put_record(const CatalogVersion& version);
  [[nodiscard]] std::vector<Entry> read_record(std::uint64_t version) const;

  void bring(const CatalogVersion& version, const Context& context);
  void make(const CatalogVersion& version, const Context& context);
  bool fill(const CatalogVersion& version, const std::filesystem::path& directory,
            const Context& context);
  void place(const std::filesystem::path& image, const std::filesystem::path& target,
             const Context& context);
  void bring_all(Shown& shown, const Context& context);
  void remove_others(const Catalog& catalog, Shown& shown);
  void move_latest(std::uint64_t version);
  [[nodiscard]] bool may_move(std::uint64_t version) const;
  bool remove(std::uint64_t version);
  [[nodiscard]] bool nobody_reads_in(const std::filesystem::path& directory,
                                     std::uint64_t version) const;
  void finish_removal(std::uint64_t version);

  const std::filesystem::path path_;
  const Follow follow_;
  const std::function<bool(std::uint64_t)> keeps_;
  const std::function<std::filesystem::path(std::uint64_t)> images_;
  File lock_;

  // Guards the fields below, and the content of the directory.
  mutable RankedMutex mutex_{LockRank::sync_directory, "SyncDirectory::mutex_"};
  std::set<std::uint64_t> ours_;   // versions with a record
  std::set<std::uint64_t> whole_;  // those that this process has checked
  bool has_copies_ = false;
  mutable RefusedLeases refused_leases_;  // has a lock of its own
};

/// A directory made by `weightfs sync`.
struct SyncDirectoryInfo {
  std::filesystem::path path;  // canonical
  std::string url, repository;
  bool is_running = false;  // a process keeps it up to date
  std::string pid = {};     // of that process; empty: there is none
  /// When its process wrote its status, tried to, or began; seconds since 1970, 0: never.
  std::int64_t stated = 0;
};

/// Returns: nullopt if `path` is not such a directory.
std::optional<SyncDirectoryInfo> find_sync_directory(const std::filesystem::path& path);

/// The text of DIR/.weightfs/status, for who does what it says.
/// Throws Error: permission, if another user than root and this one may have written it: says as
/// whom to run this; not_found; io.
std::string read_own_status(const std::filesystem::path& directory);

}  // namespace weightfs::fs
