// Loader pins: the passes of one mount, and the pins by hand: who calls is found in /proc, what
// there is in the catalog.
//
// Threads: all calls may run in parallel.  One thread of its own ends passes; it sleeps while there
// are none.  Calls of the session's threads read a few small files of /proc and never wait.
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
#include "store/local/manual_pins.hpp"
#include "store/sync/catalog.hpp"

namespace weightfs::fs {

/// For `status`.
struct PinsState {
  std::vector<PassState> passes;                  // oldest first
  std::vector<FullTable> full;                    // uids that get no more
  std::map<std::uint64_t, std::int64_t> by_hand;  // version -> seconds since 1970
};

/// Who sends a request, as the kernel tells it.
struct Requester {
  pid_t thread = 0;  // 0: it is invisible here
  uid_t uid = 0;
};

class LoaderPins : private Processes {
 public:
  using FindCatalog = std::function<std::shared_ptr<const Catalog>()>;

  /// Keeps what it is given.
  LoaderPins(FindCatalog catalog, ManualPins& by_hand, PassTimes times);
  ~LoaderPins() override;

  /// st_dev of the mount, when it is known.
  void set_device(dev_t device) noexcept { device_ = device; }

  /// From here on the mount is in bind mode: READLINK pins (fs/passes/link_passes.hpp).
  void set_bind_mode();
  /// A version is about to be bound, or is no more.  Requires: bind mode.
  void bound(const CatalogVersion& version);
  void unbound(std::uint64_t version);

  /// READLINK.  Returns: the version that the caller is to see; nullopt: the inode is no symlink to
  /// a version, or there is none yet.
  std::optional<std::uint64_t> link(const Requester& caller, Inode inode);

  /// OPEN of a file; also of such as no version has.  See Passes.
  Passes::Opened opened(const Requester& caller, Inode inode);
  std::uint64_t hold(const PassHold& hold) { return passes_.hold(hold); }
  void released(std::uint64_t handle) { passes_.released(handle, boot_now()); }

  /// True if the version's images must stay: it is pinned, or somebody was told just now that
  /// `latest` is that version and has not come to open it yet.  Also asked before a version is
  /// hidden: who was told of it must find it.
  [[nodiscard]] bool keeps(std::uint64_t version) const;

  /// `version`: 0 means what `latest` is.  Returns: the version.
  /// Throws Error: not_found (it has no image here); what ManualPins throws.
  std::uint64_t pin(std::uint64_t version);
  /// Returns: how many pins it ended.  Throws Error: not_found if there is no such pin; what
  /// ManualPins throws.
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
  const Clock::duration interval_;  // between two looks of the thread
  const ReaderSessions sessions_;
  std::atomic<dev_t> device_ = 0;
  Passes passes_;
  LinkPasses link_passes_;  // in bind mode
  LatestLookups lookups_;
  std::atomic<bool> is_bind_mode_ = false;
  std::unique_ptr<ImageWatch> image_watch_;  // set before bind mode is; nullptr: no inotify
  // Held from taking what was opened until it counts.
  RankedMutex opens_mutex_{LockRank::pins_opens, "LoaderPins::opens_mutex_"};
  RankedMutex refused_mutex_{LockRank::leaf, "LoaderPins::refused_mutex_"};  // guards the next
  std::map<uid_t, Clock::time_point> refused_logged_;
  // Guards nothing but the wait for a first pass.
  RankedMutex wake_mutex_{LockRank::first_pass, "LoaderPins::wake_mutex_"};
  std::condition_variable_any awake_;
  std::jthread watch_;
};

}  // namespace weightfs::fs
