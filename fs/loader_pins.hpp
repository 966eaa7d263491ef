// Loader pins: the pins of one mount: who calls is found in /proc, what there is in the catalog.
//
// Threads: all calls may run in parallel.  One thread of its own ends pins; it sleeps while there
// are none.  Calls of the session's threads read a few small files of /proc and never wait.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fs/image_watch.hpp"
#include "fs/inode.hpp"
#include "fs/pins.hpp"
#include "fs/walks.hpp"
#include "store/catalog.hpp"
#include "store/hand_pins.hpp"

namespace weightfs::fs {

/// What `weightfs unpin` ends; nothing given: all.
struct UnpinRequest {
  std::optional<std::uint64_t> version = {};
  std::optional<std::string> session = {};
};

/// For `status`.
struct PinsState {
  std::vector<PinState> sessions;                 // oldest first
  std::map<std::uint64_t, std::int64_t> by_hand;  // version -> seconds since 1970
};

class LoaderPins {
 public:
  using FindCatalog = std::function<std::shared_ptr<const Catalog>()>;

  /// Keeps what it is given.
  LoaderPins(FindCatalog catalog, HandPins& by_hand, PinTimes times);
  ~LoaderPins();

  /// st_dev of the mount, when it is known.
  void set_device(dev_t device) noexcept { device_ = device; }

  /// From here on the mount is in bind mode: READLINK pins (fs/pins.hpp).
  void set_bind_mode();
  /// A version is about to be bound, or is no more.  Requires: bind mode.
  void bound(const CatalogVersion& version);
  void unbound(std::uint64_t version);

  /// READLINK of `latest`.  Returns: the version that the thread is to see; 0: there is none yet.
  std::uint64_t link(pid_t thread);

  /// OPEN of a file; also of such as no version has.  See Pins::opened.
  Pins::Opened opened(pid_t thread, Inode inode);
  void released(std::uint64_t handle) { pins_.released(handle, Clock::now()); }

  /// True if the version's images must stay: it is pinned, or somebody was told just now that
  /// `latest` is that version and has not come to open it yet.  Also asked before a version is
  /// hidden: who was told of it must find it.
  [[nodiscard]] bool keeps(std::uint64_t version) const;

  /// `version`: 0 means what `latest` is.  Returns: the version.
  /// Throws Error: not_found (it has no image here); what HandPins throws.
  std::uint64_t pin(std::uint64_t version);
  /// Returns: how many pins it ended.  Throws Error: not_found if there is no such pin; what
  /// HandPins throws.
  std::size_t unpin(const UnpinRequest& what);

  [[nodiscard]] PinsState list() const;

 private:
  void watch(const std::stop_token& stop);
  void note_opens();
  [[nodiscard]] bool has_files(const std::string& session, std::uint64_t version) const;
  void wake();

  const FindCatalog catalog_;
  HandPins& by_hand_;
  const Clock::duration interval_;  // between two looks of the thread
  const ReaderSessions sessions_;
  std::atomic<dev_t> device_ = 0;
  Pins pins_;
  Walks walks_;
  std::atomic<bool> is_bind_mode_ = false;
  std::unique_ptr<ImageWatch> image_watch_;  // set before bind mode is; nullptr: no inotify
  std::mutex opens_mutex_;                   // held from taking what was opened until it counts
  std::mutex wake_mutex_;                    // guards nothing but the wait for a first pin
  std::condition_variable_any awake_;
  std::jthread watch_;
};

}  // namespace weightfs::fs
