// Bound versions: keeps the versions that the catalog shows as complete bound, on a mount in bind
// mode (fs/mount/bind_mounts.hpp).
//
// A version is bound before `latest` moves to it (bring), and once it is complete (by a thread of
// its own, which checks when it is notified, and every few seconds).  Its bind mount is removed
// before the version is hidden and removed (withdraw), unless it is in use.  One that the disk lost
// is hidden and made again while it is in use: its readers keep what they have open.  A version
// that cannot be bound is served by the daemon, and the log says why.
//
// The images show their own attributes under a bind mount, so they get the mount's owner and modes,
// and the version's time.  An image that several versions share (a hard link) has the time of one
// of them.
//
// Threads: all calls may run in parallel, but only notify() and is_bound() on a thread that serves
// the mount: the others walk paths through it.  No call waits for another longer than kPatience:
// should all serving threads wait for calls that wait for the mount, one gives up.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fs/fuse/tree.hpp"
#include "fs/mount/bind_mounts.hpp"
#include "fs/mount/mount_info.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/catalog/catalog.hpp"
#include "store/local/version_guard.hpp"

namespace weightfs::fs {

/// Gives a version's images the attributes that the mount shows.  Stops at the first file that
/// cannot be changed.
/// Throws Error: what the call says, naming the file.
void set_image_attributes(const CatalogVersion& version, const Ownership& ownership);

struct BoundVersionsOptions {
  Ownership ownership;
  /// A version was bound, or is no longer bound.  Called from any thread; may be empty.
  std::function<void(const CatalogVersion&)> bound = {};
  std::function<void(std::uint64_t version)> unbound = {};
  /// Whether a process has a file of the version's images open or mapped.  Empty: none has.
  std::function<bool(std::uint64_t version)> is_read = {};
};

class BoundVersions final : public VersionGuard {
 public:
  static constexpr std::chrono::seconds kPatience{2};

  explicit BoundVersions(BoundVersionsOptions options);
  ~BoundVersions() override;  // stops

  /// Binds what the catalog shows, and starts the thread.  Before this nothing is bound: bring()
  /// does nothing, and withdraw() succeeds.  May be called once.  Requires: the mount is a weightfs
  /// mount and is served.
  void start(const MountInfo& mount, std::function<std::shared_ptr<const Catalog>()> catalog);

  /// From here on nothing is bound or unbound: bind mounts end with the mount.  May be called from
  /// any thread while the mount is still served, and more than once.
  void stop();

  /// There is a new catalog.  Never waits.
  void notify();

  /// Binds a version of the catalog now.  Does nothing if it is bound, withdrawn or not complete.
  void bring(std::uint64_t version) noexcept;

  /// True if it is bound and being read: then it must not vanish even for the moment that checking
  /// for readers takes.
  [[nodiscard]] bool keeps(std::uint64_t version) override;
  /// Unbinds a version, and does not bind it again until restore(), or until it has left the
  /// catalog.
  /// Returns: false if it is in use; then it stays bound.
  bool withdraw(std::uint64_t version) override;
  void restore(std::uint64_t version) override;

  [[nodiscard]] bool is_bound(std::uint64_t version) const;
  [[nodiscard]] std::vector<std::uint64_t> list() const;  // ascending

 private:
  void run(const std::stop_token& stop);
  void look();
  void bind_missing(const Catalog& catalog);
  void unbind_gone(const Catalog& catalog);
  void bind(const CatalogVersion& version);
  int end(std::uint64_t version);
  [[nodiscard]] bool is_bound_from(const CatalogVersion& version) const;
  void leave_to_readers(std::uint64_t version);
  void refresh();
  [[nodiscard]] bool has_started() const;
  [[nodiscard]] bool may_bind(std::uint64_t version) const;
  [[nodiscard]] std::filesystem::path path_of(std::uint64_t version) const;
  void warn(std::uint64_t version, const std::string& message);

  const BoundVersionsOptions options_;

  // Held during system calls; guards the next block.
  RankedTimedMutex work_mutex_{LockRank::bound_work, "BoundVersions::work_mutex_"};
  MountInfo mount_;
  std::function<std::shared_ptr<const Catalog>()> catalog_;
  std::map<std::uint64_t, std::string> said_;  // warnings already logged

  // Guards the fields below; held only briefly.
  mutable RankedMutex mutex_{LockRank::bound_sets, "BoundVersions::mutex_"};
  std::condition_variable_any changed_;
  bool notified_ = false, started_ = false, stopped_ = false;
  bool is_there_ = false;  // the mount is still at its path
  std::set<std::uint64_t> bound_, withdrawn_;

  std::jthread thread_;
};

}  // namespace weightfs::fs
