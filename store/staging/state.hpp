// Staging's state, and the one way to change it.  Only staging's own .cpp files include it.
//
// Two mutexes: `changes` puts the changes of names and records in order, and is held over their
// write to the database; `mutex` guards what is in memory, and is held over nothing slow.  Order:
// changes before mutex.  Who holds `changes` may rely on names and on inodes with a name to stay;
// counts of opens, and inodes without a name, go by `mutex` alone.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/staging/staging.hpp"
#include "store/staging/tree.hpp"

namespace weightfs {

struct Staging::State {
  State(Db& db, std::filesystem::path directory, StagingOptions options);

  /// Reads records and files; mends what does not fit.  In store/staging/load.cpp.
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

  /// As those of Staging.
  void open(StagingId id, bool writes);
  bool release(StagingId id, bool writes) noexcept;

  void resize(StagingId id, std::uint64_t size_bytes);
  /// Frees the bytes of a file that is about to be unlinked and that nobody has open: false if
  /// somebody has.
  bool empty_unused(StagingId directory, std::string_view name);

  /// Removes bytes that no name leads to any more, soon: first the records are synced, so that
  /// after a power cut no name of an older state has lost its bytes.
  void remove_later(std::vector<StagingId> ids);

  /// Nobody tells who has a directory open, or works in it: the last ones that were removed stay in
  /// memory, without a name, and answer.  Call with the mutex.
  void keep_removed_directory(StagingId id);

  /// What is to be removed later makes room before anybody is refused.
  void make_room(std::uint64_t bytes);
  /// Makes all records durable that were written before.
  void sync_records();

  Db& db;
  const std::filesystem::path directory;
  const StagingOptions options;
  File directory_file;

  // Held while unused bytes are removed, before all others.
  RankedMutex removing{LockRank::staging_removing, "Staging::State::removing"};

  RankedMutex changes{LockRank::staging_changes, "Staging::State::changes"};
  StagingId reserved_ids = kFirstStagingId;  // guarded by `changes`; what the database says

  mutable RankedMutex mutex{LockRank::staging, "Staging::State::mutex"};  // guards what follows
  mutable std::condition_variable_any unwritten;  // a file has lost its last writer
  StagingTree tree;
  std::deque<StagingId> removed_directories;              // oldest first
  std::uint64_t records_written = 0, records_synced = 0;  // counts of writes
  std::vector<StagingId> unused;
  std::condition_variable_any unused_changed;

 private:
  void remove_unused_until(const std::stop_token& stop);
  bool remove_unused();  // false if the records could not be synced

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

/// A change of names and records while it is put together: nobody else changes any meanwhile.
/// First looks (`tree`, locked), then says what is to be, then write(): all of it or nothing.
class StagingChange {
 public:
  explicit StagingChange(Staging::State& state);

  [[nodiscard]] const StagingTree& tree() const { return state_.tree; }
  [[nodiscard]] const timespec& now() const { return now_; }

  /// A fresh id.
  StagingId take_id();
  /// A new inode.
  void add(StagingId id, StagingRecord record);
  /// Other attributes.
  void set(StagingId id, StagingRecord record);
  /// An entry, in the place of what had that name.
  void link(StagingId directory, std::string_view name, StagingId id);
  void unlink(StagingId directory, std::string_view name);
  /// An inode that has lost its name.
  void drop(StagingId id);
  /// A directory's entries have changed: mtime, ctime.
  void touch(StagingId directory);
  /// The ctime of an inode that stays.
  void touch_ctime(StagingId id);
  /// Removes an entry whose bytes, if it is a file, belong to an image.
  void publish(StagingId id);
  void allow_removal(StagingId directory, bool is_allowed);
  void also(std::vector<Db::Change> changes);

  /// Lets others look while something slow is made ready.
  void unlock();
  /// Returns: the files that are gone, for State::remove_later().
  std::vector<StagingId> write(Durability durability = Durability::process);

 private:
  void forget(StagingId id);

  Staging::State& state_;
  std::unique_lock<RankedMutex> order_, lock_;
  timespec now_;
  std::vector<Db::Change> records_;
  std::vector<std::function<void()>> steps_;  // in memory, once the records are written
  std::vector<StagingId> gone_, touched_;     // files
};

}  // namespace weightfs
