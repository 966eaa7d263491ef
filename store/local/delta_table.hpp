// DeltaTable: the deltas that a store has as files (store/inspect/delta_files.hpp), and those being
// written.
//
//     <store>/deltas/<v>.safetensors        the change from v - 1 to v; recorded
//     <store>/deltas/<a>-<b>.safetensors    the change from a to b; of this process only
//     <store>/deltas/<a>-<b>.with-old.safetensors   with the old values; likewise, also of a step
//
//     begin() ----> complete() ----> remove(), to make room
//        \-------> abandon()
//
// The delta of a version is recorded after its file has its final name.  A record without its file
// is ignored; a file without a record is removed when the store is opened.  Those of other pairs
// and those with old values have none, as older releases would not know it: they are made again
// after a restart.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>

#include "store/base/delta_id.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"

namespace weightfs {

class DeltaTable {
 public:
  struct Delta {
    std::uint64_t bytes = 0;
    bool is_complete = false;  // else being written
  };

  /// Reads the records, and removes files without one.  Keeps the reference.
  /// `directory`: of the deltas.  `temporary`: on the same file system.  Requires: both exist.
  /// Throws Error: corrupt, io; std::filesystem::filesystem_error.
  DeltaTable(Db& db, std::filesystem::path directory, std::filesystem::path temporary);

  /// The file, if it is complete.  It may be removed at any time, but stays readable once opened.
  [[nodiscard]] std::optional<std::filesystem::path> find(DeltaId id) const;

  /// Counts a file of `bytes` from now on.
  /// Returns: the path to write it to, a new name below the temporary directory.
  /// Requires: neither complete nor begun; there is room (Evictor::evict_for_delta()).
  std::filesystem::path begin(DeltaId id, std::uint64_t bytes);

  /// Moves the file from begin() to its final name, then records it, if it is of one step
  /// and without old values.
  /// Requires: begun; the file is synced.  Throws Error: io if its size differs; no_space.
  void complete(DeltaId id, const std::filesystem::path& file);

  /// Stops counting it and removes what was written.  Does nothing if it was completed.
  void abandon(DeltaId id, const std::filesystem::path& file) noexcept;

  /// Removes a complete delta unless it is being read.  A reader that opens it meanwhile can still
  /// read it.  Returns: whether it is gone.  Throws Error: io.
  bool remove(DeltaId id);

  /// All deltas that are complete or begun.
  [[nodiscard]] std::map<DeltaId, Delta> list() const;
  /// Total size of all of them.
  [[nodiscard]] std::uint64_t total_bytes() const;

 private:
  void load();
  void remove_strays() const;
  [[nodiscard]] std::filesystem::path path_of(DeltaId id) const;

  Db& db_;
  const std::filesystem::path directory_, temporary_;
  mutable RankedMutex mutex_{LockRank::store, "DeltaTable::mutex_"};  // guards deltas_
  std::map<DeltaId, Delta> deltas_;                                   // complete or begun
};

}  // namespace weightfs
