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
// A file is made when somebody asks for it, or ahead, while the version is
// (store/sparse/ahead_deltas.hpp).  One that is made ahead is complete before it is synced:
// record_synced() records it.  With images in memory it lies beside these, and has no record.
//
// Threads: all calls may run in parallel.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "store/base/context.hpp"
#include "store/base/delta_id.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/database/db.hpp"
#include "store/os/refused_leases.hpp"

namespace weightfs {

class DeltaTable {
 public:
  enum class Home { disk, memory };

  struct Delta {
    std::uint64_t bytes = 0;
    bool is_complete = false;  // else being written
    Home home = Home::disk;
  };

  /// Since the store was opened.
  struct Counters {
    std::uint64_t ahead = 0;      // made while the version was
    std::uint64_t on_demand = 0;  // made when somebody asked
    std::uint64_t given_up = 0;   // begun ahead, and not completed
    std::uint64_t served = 0;     // times that one made ahead was asked for

    bool operator==(const Counters&) const = default;
  };

  /// Reads the records, and removes files without one.  Keeps the reference.
  /// `directory`: of the deltas.  `temporary`: on the same file system.  Requires: both exist.
  /// Throws Error: corrupt, io; std::filesystem::filesystem_error.
  DeltaTable(Db& db, std::filesystem::path directory, std::filesystem::path temporary);

  /// What is made ahead beside images in memory lies in `directory` from now on.  `temporary`: on
  /// the same file system.  Requires: both exist; nobody uses this yet.
  void use_memory(std::filesystem::path directory, std::filesystem::path temporary);

  /// The file, if it is complete.  It may be removed at any time, but stays readable once opened.
  [[nodiscard]] std::optional<std::filesystem::path> find(DeltaId id) const;
  /// Its size, if it is complete.
  [[nodiscard]] std::optional<std::uint64_t> find_bytes(DeltaId id) const;
  /// As find(), for who wants to read it: it is counted.
  [[nodiscard]] std::optional<std::filesystem::path> find_to_read(DeltaId id);

  /// Counts a file of `bytes` from now on.
  /// Returns: the path to write it to, a new name below the temporary directory; nullopt if it is
  /// complete, or somebody else has begun it.
  /// Requires: there is room (Evictor::evict_for_delta()); `home` is memory only after
  /// use_memory().
  std::optional<std::filesystem::path> begin(DeltaId id, std::uint64_t bytes,
                                             Home home = Home::disk);

  /// The size that a file will have, if it was not known.  Requires: begun by the caller.
  void set_bytes(DeltaId id, std::uint64_t bytes);

  /// Waits while it is begun and neither complete nor abandoned.
  /// Throws Error: cancelled, timed_out.
  void wait_begun(DeltaId id, const Context& context);

  /// Moves the file from begin() to its final name, then records it, if it is of one step
  /// and without old values.
  /// Requires: begun; the file is synced.  Throws Error: io if its size differs; no_space.
  void complete(DeltaId id, const std::filesystem::path& file);

  /// The same of one that is made ahead: it need not be synced yet, and is not recorded.
  void complete_ahead(DeltaId id, const std::filesystem::path& file);

  /// Syncs what complete_ahead() left, and records what complete() would.  What the disk does not
  /// take is removed, also if it is being read.  Throws Error: no_space, io.
  void record_synced();

  /// Stops counting it and removes what was written.  Does nothing if it was completed.
  void abandon(DeltaId id, const std::filesystem::path& file) noexcept;
  /// The same of one that is made ahead.
  void abandon_ahead(DeltaId id, const std::filesystem::path& file) noexcept;

  /// Removes a complete delta unless it is being read.  A reader that opens it meanwhile can still
  /// read it.  Returns: whether it is gone.  Throws Error: io.
  bool remove(DeltaId id, RefusedLeases& refused_leases);

  /// All deltas that are complete or begun.
  [[nodiscard]] std::map<DeltaId, Delta> list() const;
  /// Total size of all of them in a home.
  [[nodiscard]] std::uint64_t total_bytes(Home home = Home::disk) const;
  [[nodiscard]] Counters counters() const;

 private:
  struct Directories {
    std::filesystem::path files, temporary;
  };

  void load();
  void remove_strays() const;
  [[nodiscard]] const Directories& directories_of(Home home) const;
  [[nodiscard]] std::filesystem::path path_of(DeltaId id, Home home = Home::disk) const;
  void move_to_name(DeltaId id, const std::filesystem::path& file, const Delta& delta) const;
  void record(DeltaId id, std::uint64_t bytes);
  bool drop_begun(DeltaId id, const std::filesystem::path& file) noexcept;
  std::filesystem::path take_out(DeltaId id, Home home);

  Db& db_;
  const Directories disk_;
  Directories memory_;  // constant once in use; empty: there is none
  mutable RankedMutex mutex_{LockRank::store, "DeltaTable::mutex_"};  // guards what follows
  std::condition_variable_any ended_;                                 // one is not begun any more
  std::map<DeltaId, Delta> deltas_;                                   // complete or begun
  std::set<DeltaId> ahead_;                                           // of these, made ahead
  std::set<DeltaId> unsynced_;                                        // of these, to be synced
  Counters counters_;
};

}  // namespace weightfs
