// Sync directory: what `weightfs sync` keeps up to date, as ordinary files.
//
//     DIR/latest -> versions/42        replaced by rename(2), and only when versions/42 is whole
//     DIR/versions/42/                 hard links to the store's images; copies where it lies on
//                                      another file system
//     DIR/.weightfs/sync               marker: this directory is ours, and whose versions are in it
//     DIR/.weightfs/lock               held by the process that keeps it up to date; says its pid
//     DIR/.weightfs/status             JSON, as that of a mount
//     DIR/.weightfs/advice             text, likewise
//     DIR/.weightfs/versions/42.json   record: versions/42 is ours, its tag and what lies in it
//     DIR/.weightfs/tmp/               what is being made or removed
//
// A version is made in tmp/ and renamed when it is whole, after its record was written; it is taken
// back to tmp/ before the first of its files is removed, and its record goes last.  So a process
// that was killed at any point leaves what the next one puts right.  What has no record is somebody
// else's and is never touched.
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
#include "store/base/ranked_mutex.hpp"
#include "store/local/version_guard.hpp"
#include "store/os/file.hpp"
#include "store/sync/catalog.hpp"
#include "store/sync/follow.hpp"

namespace weightfs::fs {

class SyncDirectory final : public VersionGuard {
 public:
  /// Takes a directory, which is made if it is not there, and puts right what a killed process
  /// left.
  ///
  /// `keeps`: versions that must stay for the time being; quick, and calls nothing of this object
  /// but latest() and tag().  Asked after a look at what `latest` is.  Empty: none.
  /// `images`: where the store has a version, or would; files that are linked from there are read
  /// through either name.  Empty: nowhere.
  ///
  /// Throws Error: invalid (not empty and not ours, another repository's), busy (names the pid),
  /// permission, exists (something else stands where a name of ours belongs), io.
  SyncDirectory(const std::filesystem::path& path, const std::string& repository,
                const std::string& url, Follow follow = {},
                std::function<bool(std::uint64_t version)> keeps = {},
                std::function<std::filesystem::path(std::uint64_t version)> images = {});

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Shows what a catalog has: its `latest` first, then its other versions, then removes those it
  /// does not have, if nobody uses them and `keeps` does not name them.  `latest` goes back only
  /// if another thing is followed.
  ///
  /// `find_catalog` is asked while release() waits, so that no version comes back that was
  /// released.
  /// Returns: the catalog that is shown.
  /// Throws Error: exists (somebody else's versions/N), no_space, cancelled, io.  What was there is
  /// as it was then, but that some versions may be there already.
  std::shared_ptr<const Catalog> show(
      const std::function<std::shared_ptr<const Catalog>()>& find_catalog, const Context& context);

  /// Removes a version that the store is about to remove, unless it is in use, kept or `latest`.
  /// Returns: true if it is not there any more.
  bool release(std::uint64_t version) override;

  /// Where `latest` leads; 0: it is not there.  Waits for nobody.
  [[nodiscard]] std::uint64_t latest() const;

  /// Of a version of ours; empty: it has none, or is not there.  Waits for nobody.
  [[nodiscard]] std::string tag(std::uint64_t version) const;

  /// Versions of ours that are there, ascending.
  [[nodiscard]] std::vector<std::uint64_t> versions() const;

  /// Whether files had to be copied.
  [[nodiscard]] bool has_copies() const;

  /// Replaces DIR/.weightfs/status or .weightfs/advice.
  void write_status(const std::string& text) const { write_own("status", text); }
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
  void bring_all(const Catalog& catalog, const Context& context);
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

  // Guards what follows, and what is in the directory.
  mutable RankedMutex mutex_{LockRank::sync_directory, "SyncDirectory::mutex_"};
  std::set<std::uint64_t> ours_;   // that have a record
  std::set<std::uint64_t> whole_;  // of these: looked at by this process
  bool has_copies_ = false;
};

/// A directory that `weightfs sync` made.
struct SyncDirectoryInfo {
  std::filesystem::path path;  // canonical
  std::string url, repository;
  bool is_running = false;  // a process keeps it up to date
};

/// nullopt if `path` is none.
std::optional<SyncDirectoryInfo> find_sync_directory(const std::filesystem::path& path);

}  // namespace weightfs::fs
