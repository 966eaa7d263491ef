// Db: the store's RocksDB.  Home of RocksDB: no other file includes it.
//
// Every write goes through the write-ahead log; who calls says how durable it must be.  Debian's
// RocksDB aborts the process on a full disk, so nothing is written below a floor of free space:
// write() throws no_space, and a database that is opened below the floor is opened read-only, and
// again for writing as soon as there is room.
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

#include "store/local/column_families.hpp"

namespace weightfs {

/// Free bytes below which nothing is written to RocksDB.
inline constexpr std::uint64_t kRecordsFloorBytes = 64u << 20;

/// What a write that has returned survives.
enum class Durability {
  process,  // the end of this process, kill -9 too
  power     // also a power cut: the log was synced
};

class Db {
 public:
  struct Change {
    ColumnFamily family;
    std::string key;
    std::optional<std::string> value;  // nullopt: delete
  };

  /// Opens or creates the database in `directory`.
  /// `free_bytes` tells the free space there; empty: asks the file system.
  /// Throws Error: corrupt (not a database, or damaged), no_space (none there and no room to make
  /// one), io.
  static std::unique_ptr<Db> open(const std::filesystem::path& directory,
                                  std::function<std::uint64_t()> free_bytes = {});
  virtual ~Db() = default;

  /// nullopt if the key is absent.  Throws Error: corrupt, io.
  [[nodiscard]] virtual std::optional<std::string> find(ColumnFamily family,
                                                        std::string_view key) const = 0;

  /// All pairs whose key starts with `prefix`, ascending.  Requires: `each` does not call the Db.
  /// Throws Error: corrupt, io.
  virtual void scan(
      ColumnFamily family, std::string_view prefix,
      const std::function<void(std::string_view key, std::string_view value)>& each) const = 0;

  /// Applies all changes or none.  Throws Error: no_space (nothing was written), io.
  virtual void write(const std::vector<Change>& changes,
                     Durability durability = Durability::power) = 0;

  /// Makes everything that was written survive a power cut.  Throws Error: no_space, io.
  virtual void sync() = 0;
};

}  // namespace weightfs
