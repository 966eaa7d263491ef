// SyncWatch: what this process syncs to the disk, and a disk that does not take it.
//
// No disk here fails when it is asked to, and nothing shows which name a power cut would take: so
// the program of the store's tests has an fsync(2), fdatasync(2) and sync_file_range(2) of its own,
// which ask the SyncWatch that lives.
//
// Threads: all calls may run in parallel.  One lives at a time; whoever waits for a sync that it
// holds must not be joined meanwhile.
#pragma once

#include <cerrno>
#include <mutex>
#include <set>
#include <string>

namespace weightfs::test {

class SyncWatch {
 public:
  /// `failing`: the first sync of each file or directory with this in its path fails with `error`,
  /// and no later one, as Linux has it, but for what says nothing of the disk (see
  /// is_lost_write()): then each does.  Empty: none does.
  explicit SyncWatch(std::string failing = {}, int error = EIO);
  ~SyncWatch();
  SyncWatch(const SyncWatch&) = delete;
  SyncWatch& operator=(const SyncWatch&) = delete;

  /// Whether this path has been synced since this lives.
  [[nodiscard]] bool has_seen(const std::string& path) const;

  /// From now on each sync of something with this in its path waits, until release() or the end of
  /// this.
  void hold(std::string in_path);
  void release();

  /// Waits until a sync waits.
  [[nodiscard]] bool is_reached();

  /// Before each call: whether it has to wait.
  [[nodiscard]] bool holds(const std::string& path);

  /// By each call.  `is_whole`: by fsync(2).  Returns: 0, or what it is to fail with.
  int note(int fd, bool is_whole);

 private:
  const std::string failing_;
  const int error_;
  mutable std::mutex mutex_;
  std::set<std::string> seen_, told_;
  std::string held_;         // guarded by the mutex of sync_watch.cpp, as is the next
  bool is_reached_ = false;  // since hold()
};

}  // namespace weightfs::test
