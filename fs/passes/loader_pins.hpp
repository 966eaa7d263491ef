// Loader pins: the passes of one mount, and the pins by hand.  It looks up callers in /proc, and
// versions in the catalog.
//
// Threads: all calls may run in parallel.  A thread of its own ends passes; it sleeps while there
// are none.  Calls by the session's threads read a few small files in /proc and never wait.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fs/base/inode.hpp"
#include "fs/passes/image_watch.hpp"
#include "fs/passes/latest_lookups.hpp"
#include "fs/passes/link_passes.hpp"
#include "fs/passes/passes.hpp"
#include "fs/passes/unpin_request.hpp"
#include "store/base/ranked_mutex.hpp"
#include "store/catalog/catalog.hpp"
#include "store/local/manual_pins.hpp"

namespace weightfs::fs {

/// For `status`.
struct PinsState {
  std::vector<PassState> passes;                  // oldest first
  std::vector<FullTable> full;                    // uids that get no more passes
  std::map<std::uint64_t, std::int64_t> by_hand;  // version -> seconds since 1970
};

/// The sender of a request, according to the kernel.
struct Requester {
  pid_t thread = 0;  // 0: invisible here
  uid_t uid = 0;
};

class LoaderPins : private Processes {
 public:
  using FindCatalog = std::function<std::shared_ptr<const Catalog>()>;

  /// Keeps its arguments.
  LoaderPins(FindCatalog catalog, ManualPins& by_hand, PassTimes times);
  ~LoaderPins() override;

  /// st_dev of the mount, once it is known.
  void set_device(dev_t device) noexcept { device_ = device; }

  /// From here on the mount is in bind mode: a READLINK pins (fs/passes/link_passes.hpp).
  void set_bind_mode();
  /// A version is about to be bound, or is no longer bound.  Requires: bind mode.
  void bound(const CatalogVersion& version);
  void unbound(std::uint64_t version);

  /// A READLINK.
  /// Returns: the version to show to the caller; nullopt: the inode is not a symlink to a version,
  /// or there is no version yet.
  std::optional<std::uint64_t> link(const Requester& caller, Inode inode);

  /// An OPEN of any file, whether or not it belongs to a version.  See Passes.
  Passes::Opened opened(const Requester& caller, Inode inode);
  std::uint64_t hold(const PassHold& hold) { return passes_.hold(hold); }
  void released(std::uint64_t handle) { passes_.released(handle, boot_now()); }

  /// True if the version's images must stay: it is pinned, or a READLINK of `latest` has just led a
  /// caller to that version, which has not opened it yet.  Also called before a version is hidden:
  /// such a caller must find it.
  [[nodiscard]] bool keeps(std::uint64_t version) const;

  /// `version`: 0 means the one that `latest` shows.
  /// Returns: the version.
  /// Throws Error: not_found (it has no image here); as ManualPins.
  std::uint64_t pin(std::uint64_t version);
  /// Returns: how many pins it ended.
  /// Throws Error: not_found if there is no such pin; as ManualPins.
  std::size_t unpin(const UnpinRequest& what);

  [[nodiscard]] PinsState list() const;

 private:
  [[nodiscard]] bool is_gone(const ProcessId& process) const override;
  [[nodiscard]] std::vector<ProcessId> ancestors(const ProcessId& process) const override;
  [[nodiscard]] std::set<std::string> find_dead(std::set<std::string> sessions) const override;
  [[nodiscard]] bool uses(const std::string& session, std::uint64_t version) const override;

  Walk tell(const Requester& caller, const std::string& link, std::uint64_t newest, LinkUse use,
            const std::optional<Reader>& reader);
  void open_bound(const CatalogVersion& version, const CatalogEntry& entry);
  void note_opens();
  void note_refused(uid_t uid);
  void watch(const std::stop_token& stop);
  void wake();

  const FindCatalog catalog_;
  ManualPins& by_hand_;
  const Clock::duration interval_;  // between the thread's checks
  const ReaderSessions sessions_;
  std::atomic<dev_t> device_ = 0;
  Passes passes_;
  LinkPasses link_passes_;  // bind mode
  LatestLookups lookups_;
  std::atomic<bool> is_bind_mode_ = false;
  std::unique_ptr<ImageWatch> image_watch_;  // set before bind mode begins; nullptr: no inotify
  // Held from reading the opens until they are counted.
  RankedMutex opens_mutex_{LockRank::pins_opens, "LoaderPins::opens_mutex_"};
  RankedMutex refused_mutex_{LockRank::leaf, "LoaderPins::refused_mutex_"};  // guards the field
                                                                             // below
  std::map<uid_t, Clock::time_point> refused_logged_;
  // Guards only the wait for a first pass.
  RankedMutex wake_mutex_{LockRank::first_pass, "LoaderPins::wake_mutex_"};
  std::condition_variable_any awake_;
  std::jthread watch_;
};

}  // namespace weightfs::fs
