// ImageSyncer: syncs complete versions to disk after readers have them, in a thread of the lowest
// priority (store/local/sync_images.hpp).
//
// What is due is asked of the store when wake() is called, which is after `latest` has moved: no
// file of a version is synced before that.  The newest version comes first: older ones may be
// evicted before their turn, and then their bytes need never reach the disk.  A version that is to
// be evicted is let go: it is a VersionGuard, as the eviction takes what somebody has open for
// read.
//
// A version that the disk did not take is forgotten, and `lost` is told, which shows a catalog
// without it; then its files are removed.  While a version is due its files are held (O_PATH, which
// leases do not see): an inode that leaves the kernel's cache takes its error along.
//
// Threads: all calls may run in parallel.  Callbacks run in the thread, without locks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <thread>
#include <vector>

#include "store/base/error.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/local/eviction.hpp"
#include "store/local/store.hpp"
#include "store/local/version_guard.hpp"
#include "store/os/file.hpp"

namespace weightfs {

class ImageSyncer final : public VersionGuard {
 public:
  struct Listener {
    /// The version is forgotten; its files are still there.
    std::function<void(std::uint64_t version, const Error& error)> lost = {};
    /// Now they are not.
    std::function<void()> removed = {};
    std::function<void(std::uint64_t version)> synced = {};
  };

  /// Keeps the reference.
  ImageSyncer(Store& store, Listener listener);
  ~ImageSyncer() override;  // stops

  void start();
  /// Waits for a slice of a file at most; what is not synced stays so.
  void stop();

  /// Versions may have become complete.  Quick.
  void wake();

  /// Syncs what is due now, without the thread.  Requires: it does not run.
  void sync_all();

  [[nodiscard]] bool withdraw(std::uint64_t version) override;
  void restore(std::uint64_t version) override;

 private:
  /// A version that is due, and what holds its files.
  struct Due {
    std::uint64_t generation = 0;
    std::vector<File> held;
  };

  void run(const std::stop_token& stop);
  /// How many more files may be held.
  std::size_t may_hold();
  bool is_known(std::uint64_t version, std::uint64_t generation);
  bool try_to_sync(std::uint64_t version, const std::stop_token& stop) noexcept;
  bool sync(std::uint64_t version, const std::stop_token& stop);
  void end(std::uint64_t version, std::uint64_t generation, bool is_done);
  void lose(std::uint64_t version, std::uint64_t generation, const Error& error,
            const std::stop_token& stop);

  Store& store_;
  const Listener listener_;
  mutable RankedMutex mutex_{LockRank::leaf, "ImageSyncer::mutex_"};  // guards what follows
  std::condition_variable_any changed_;
  std::map<std::uint64_t, Due> due_;
  std::map<std::uint64_t, std::uint64_t> let_go_;  // version -> generation
  std::uint64_t current_ = 0;                      // that is being synced; 0: none
  std::jthread thread_;
  Eviction::Guarding guarding_;  // last: no eviction asks what is gone
};

}  // namespace weightfs
