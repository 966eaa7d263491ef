// Db: the store's RocksDB.  Home of RocksDB, with sorted_file: no other file includes it.
//
// Every write goes through the write-ahead log; the caller chooses how durable it must be.
// Debian's RocksDB aborts the process on a full disk, so nothing is written below a floor of free
// space: write() throws no_space, and a database opened below the floor is read-only, and reopened
// for writing as soon as there is room.
//
// A family that is lazy (store/database/column_families.hpp) is made by the first write to it;
// until then it reads as empty, and older releases can open the database.
//
// A family that is renewable is emptied when the database is opened, if a file of it is damaged or
// gone and all others can be read; below the floor, at the next opening.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/database/column_families.hpp"
#include "store/database/sorted_file.hpp"

namespace weightfs {

/// Free bytes below which nothing is written to RocksDB.
inline constexpr std::uint64_t kRecordsFloorBytes = 64u << 20;

/// What a completed write survives.
enum class Durability {
  process,  // the end of this process, including kill -9
  power     // also a power cut: the log was synced
};

/// How large a database is, and how it fares.  Zeros while it is closed.
struct DbFacts {
  std::uint64_t memtable_bytes = 0;            // written, and not in files yet
  std::uint64_t file_bytes = 0;                // of all families, patches included
  std::uint64_t cache_bytes = 0;               // blocks of files in memory
  std::uint64_t pending_compaction_bytes = 0;  // that compaction is to rewrite
  std::uint64_t running_compactions = 0, running_flushes = 0;
  std::uint64_t background_errors = 0;  // since it was opened
  bool is_writable = false;             // false: no room, or a write has failed
};

class Db {
 public:
  struct Change {
    ColumnFamily family;
    std::string key;
    std::optional<std::string> value;  // nullopt: delete
  };

  /// Opens or creates the database in `directory`.
  /// `free_bytes` returns the free space there; empty: asks the file system.
  /// Throws Error: corrupt (not a database, or damaged), no_space (there is none, and no room to
  /// create one), io.
  static std::unique_ptr<Db> open(const std::filesystem::path& directory,
                                  std::function<std::uint64_t()> free_bytes = {});
  /// The records as they are now, while another process may have the database open, and write it;
  /// what that process writes later is not seen.  Nothing is written.
  /// Throws Error: not_found (there is none), permission, corrupt, io.
  static std::unique_ptr<const Db> open_for_reading(const std::filesystem::path& directory);
  virtual ~Db() = default;

  /// nullopt if the key is absent.  Throws Error: corrupt, io.
  [[nodiscard]] virtual std::optional<std::string> find(ColumnFamily family,
                                                        std::string_view key) const = 0;

  /// Visits all pairs whose key starts with `prefix`, in ascending order.  Requires: `each` does
  /// not call the Db.
  /// Throws Error: corrupt, io.
  virtual void scan(
      ColumnFamily family, std::string_view prefix,
      const std::function<void(std::string_view key, std::string_view value)>& each) const = 0;

  /// Visits the pairs with begin <= key, and key < end unless `end` is empty, in ascending order,
  /// until `each` returns false.  Requires: `each` does not call the Db.
  /// Throws Error: corrupt, io.
  virtual void read_range(
      ColumnFamily family, std::string_view begin, std::string_view end,
      const std::function<bool(std::string_view key, std::string_view value)>& each) const = 0;

  /// Applies all changes or none, also where the disk takes them into the log and then fails; but
  /// while the disk fails whatever it is given, reads may show them.
  /// Throws Error: no_space (nothing was written), io.
  virtual void write(const std::vector<Change>& changes,
                     Durability durability = Durability::power) = 0;

  /// Makes all previous writes survive a power cut.  Throws Error: no_space, io.
  virtual void sync() = 0;

  /// An empty file for ingest().  `directory`: of the file system of the database.
  /// Throws Error: no_space (no room for a whole file above the floor), io.
  [[nodiscard]] virtual SortedFile make_sorted_file(const std::filesystem::path& directory) = 0;

  /// Makes the pairs of all files part of the family, and then applies the changes; both survive a
  /// power cut.  A crash in between leaves the pairs without the changes.
  /// Requires: the files are finished; their keys are not in the family, and in one file only.
  /// Throws Error: no_space (nothing was done), io (the pairs may be there, the changes are not).
  virtual void ingest(ColumnFamily family, std::vector<SortedFile> files,
                      const std::vector<Change>& changes) = 0;

  /// Applies the changes so that they survive a power cut, and then removes the pairs with begin <=
  /// key, and key < end unless `end` is empty.  Files that have no other pairs are unlinked.  A
  /// crash in between leaves the pairs, or some of them.
  /// Where `begin` and `end` are empty the whole family goes, also what cannot be read of it.
  /// Requires then: it is not `store`, and nobody writes to it meanwhile.
  /// Throws Error: no_space (nothing was done), io.
  virtual void remove_range(ColumnFamily family, std::string_view begin, std::string_view end,
                            const std::vector<Change>& changes) = 0;

  [[nodiscard]] virtual DbFacts facts() const = 0;
};

}  // namespace weightfs
