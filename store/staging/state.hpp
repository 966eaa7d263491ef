// Staging's state, and the only way to change it.  Only staging's own .cpp files include it.
//
// Two mutexes: `changes` serialises changes of names and records, including their database writes;
// `mutex` guards what is in memory, and nothing slow runs under it.  Order: changes before mutex.
// A holder of `changes` may rely on names, and on inodes with a name, to stay; open counts, and
// inodes without a name, are guarded by `mutex` alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/staging/staging.hpp"
#include "store/staging/tree.hpp"

namespace weightfs {

/// The record of the run of the machine in which staging was last opened.
inline constexpr std::string_view kStagingBootKey = "staging_boot";

struct Staging::State {
  State(Db& db, std::filesystem::path directory, StagingOptions options);

  /// Reads records and files, and repairs inconsistencies.  In store/staging/load.cpp.
  void load();

  [[nodiscard]] std::string backing_name(StagingId id) const { return std::to_string(id); }
  [[nodiscard]] std::filesystem::path backing_path(StagingId id) const {
    return directory / backing_name(id);
  }
  [[nodiscard]] File open_backing(StagingId id, int flags) const;
  void make_backing(StagingId id) const;
  void remove_backing(std::span<const StagingId> ids) const noexcept;
  /// Sets the ctime of a file.
  void touch_backing(StagingId id) const noexcept;

  /// As in Staging.
  void open(StagingId id, bool writes);
  bool release(StagingId id, bool writes) noexcept;
  [[nodiscard]] bool has_writers(StagingId id) noexcept;

  void resize(StagingId id, std::uint64_t size_bytes);
  /// Records StagingRecord::is_lost of files.  Where that fails it is recorded with the next
  /// change.
  void set_lost(std::span<const StagingId> files, bool is_lost);
  /// Frees the bytes of a file that is about to be unlinked and is not open; false if it is open.
  bool empty_unused(StagingId directory, std::string_view name);

  /// Soon removes bytes that have no name any more. Syncs the records first, so that after a power
  /// cut no name of an older state has lost its bytes.
  void remove_later(std::vector<StagingId> ids);

  /// The daemon is not told who has a directory open or uses it as working directory. So the most
  /// recently removed directories stay in memory without a name, to answer calls.  Requires: mutex
  /// is held.
  void keep_removed_directory(StagingId id);

  /// Frees the bytes due for removal before it gives up.  `coming_bytes`: for them too, if there
  /// can be.
  void make_room(std::uint64_t bytes, std::uint64_t coming_bytes = 0);
  /// What files that have a writer will still take of the size that was set, without `except`'s.
  [[nodiscard]] std::uint64_t lacking_bytes(StagingId except = 0) const;
  /// Makes all earlier record writes durable.
  void sync_records();

  Db& db;
  const std::filesystem::path directory;
  const StagingOptions options;
  File directory_file;

  // Held while unused bytes are removed; before all others.
  RankedMutex removing{LockRank::staging_removing, "Staging::State::removing"};

  RankedMutex changes{LockRank::staging_changes, "Staging::State::changes"};
  StagingId reserved_ids = kFirstStagingId;  // guarded by `changes`; as in the database
  std::set<StagingId> unrecorded_lost;       // guarded by `changes`; see set_lost()
  // Guarded by `changes`: what belongs into the record of the run of the machine, which a full disk
  // did not take.  Until it is there, the next process takes the machine for restarted, and what
  // is being written for files that lost their bytes.
  std::optional<std::string> unrecorded_boot;

  std::atomic<std::uint64_t> growing_bytes = 0;  // see GrowthPin

  mutable RankedMutex mutex{LockRank::staging, "Staging::State::mutex"};  // guards what follows
  mutable std::condition_variable_any unwritten;  // signalled when a file loses its last writer
  StagingTree tree;
  std::deque<StagingId> removed_directories;              // oldest first
  std::uint64_t records_written = 0, records_synced = 0;  // counts of writes
  std::vector<StagingId> unused;
  std::condition_variable_any unused_changed;

 private:
  void remove_unused_until(const std::stop_token& stop);
  bool remove_unused();  // false if the records could not be synced
  bool try_to_remove_unused() noexcept;

  std::jthread remover_;
};

/// Counts as a writer of a file while the daemon changes its size.
class WriterPin {
 public:
  WriterPin(Staging::State& state, StagingId id);
  ~WriterPin() { state_.release(id_, true); }
  WriterPin(const WriterPin&) = delete;
  WriterPin& operator=(const WriterPin&) = delete;

 private:
  Staging::State& state_;
  StagingId id_;
};

/// Until their file shows them, the bytes that a call adds to it count for the room that others ask
/// for: the ranks of a trainer set the sizes of their files at once.
class GrowthPin {
 public:
  /// More than any disk has, and sums of it do not overflow.
  static constexpr std::uint64_t kMost = std::uint64_t{1} << 60;

  /// `total`: State::growing_bytes.
  GrowthPin(std::atomic<std::uint64_t>& total, std::uint64_t bytes)
      : total_(total), bytes_(std::min(bytes, kMost)), others_(total.fetch_add(bytes_)) {}
  ~GrowthPin() { total_ -= bytes_; }
  GrowthPin(const GrowthPin&) = delete;
  GrowthPin& operator=(const GrowthPin&) = delete;

  /// Of calls that had begun before.
  [[nodiscard]] std::uint64_t others() const noexcept { return others_; }

 private:
  std::atomic<std::uint64_t>& total_;
  const std::uint64_t bytes_, others_;
};

/// Collects a change of names and records, while no other change can run. First read `tree`
/// (locked), then call the functions that describe the change, then write(): all or nothing.
class StagingChange {
 public:
  explicit StagingChange(Staging::State& state);

  [[nodiscard]] const StagingTree& tree() const { return state_.tree; }
  [[nodiscard]] const timespec& now() const { return now_; }

  /// A fresh id.
  StagingId take_id();
  /// A new inode.
  void add(StagingId id, StagingRecord record);
  /// Replaces the attributes.
  void set(StagingId id, StagingRecord record);
  /// Adds an entry, or replaces the one with that name.
  void link(StagingId directory, std::string_view name, StagingId id);
  void unlink(StagingId directory, std::string_view name);
  /// Removes an inode that has lost its name.
  void drop(StagingId id);
  /// Sets mtime and ctime of a directory whose entries change.
  void touch(StagingId directory);
  /// Sets the ctime of an inode that stays.
  void touch_ctime(StagingId id);
  /// Removes an entry; the bytes of a file now belong to an image.
  void publish(StagingId id);
  void allow_removal(StagingId directory, bool is_allowed);
  void also(std::vector<Db::Change> changes);

  /// Lets other threads read while something slow is prepared.
  void unlock();
  /// Returns: the files without a name, for State::remove_later().
  std::vector<StagingId> write(Durability durability = Durability::process);

 private:
  void forget(StagingId id);
  void add_unrecorded();

  Staging::State& state_;
  std::unique_lock<RankedMutex> order_, lock_;
  timespec now_;
  std::vector<Db::Change> records_;
  std::vector<std::function<void()>> steps_;  // applied in memory once the records are written
  std::vector<StagingId> gone_, touched_;     // files
};

}  // namespace weightfs
