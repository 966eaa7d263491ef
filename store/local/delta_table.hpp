// DeltaTable: the deltas that a store has as files, <store>/deltas/<v>.safetensors
// (store/inspect/delta_files.hpp), and those that are being written.
//
//     begin() ----> complete() ----> remove(), to make room
//        \-------> abandon()
//
// A delta is recorded after its file has its name.  A record without its file counts for nothing; a
// file without a record is removed when the store is opened.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>

#include "store/base/ranked_mutex.hpp"
#include "store/local/db.hpp"

namespace weightfs {

class DeltaTable {
 public:
  struct Delta {
    std::uint64_t bytes = 0;
    bool is_complete = false;  // else begun
  };

  /// Reads the records, and removes files that have none.  Keeps the reference.
  /// `directory`: of the deltas.  `temporary`: on the same file system.  Requires: both exist.
  /// Throws Error: corrupt, io; std::filesystem::filesystem_error.
  DeltaTable(Db& db, std::filesystem::path directory, std::filesystem::path temporary);

  /// The file, if it is complete.  It may go at any time: who has it open keeps it.
  [[nodiscard]] std::optional<std::filesystem::path> find(std::uint64_t version) const;

  /// Counts a file of `bytes` from now on.
  /// Returns: where it is to be written, a new name below the temporary directory.
  /// Requires: it is neither complete nor begun; there is room (Evictor::evict_for_delta()).
  std::filesystem::path begin(std::uint64_t version, std::uint64_t bytes);

  /// Names the file that begin() told of, then records it.
  /// Requires: begun; the file is synced.  Throws Error: io if its size is another; no_space.
  void complete(std::uint64_t version, const std::filesystem::path& file);

  /// Counts it no more, and removes what was written.  Nothing if it was completed.
  void abandon(std::uint64_t version, const std::filesystem::path& file) noexcept;

  /// Removes a complete one, unless somebody reads it.  Whoever opens it meanwhile keeps what was
  /// opened.  Returns: whether it is gone.  Throws Error: io.
  bool remove(std::uint64_t version);

  /// All that are complete or begun.
  [[nodiscard]] std::map<std::uint64_t, Delta> list() const;
  /// Bytes of all of them.
  [[nodiscard]] std::uint64_t total_bytes() const;

 private:
  void load();
  void remove_strays() const;
  [[nodiscard]] std::filesystem::path path_of(std::uint64_t version) const;

  Db& db_;
  const std::filesystem::path directory_, temporary_;
  mutable RankedMutex mutex_{LockRank::store, "DeltaTable::mutex_"};  // guards deltas_
  std::map<std::uint64_t, Delta> deltas_;                             // complete or begun
};

}  // namespace weightfs
