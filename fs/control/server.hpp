// Control: requests to a daemon that need more than a file, such as waiting for a version, or
// handing over with options.  A Unix socket; one JSON object per line in each direction;
// docs/architecture/hooks.md, "Control".
//
// Any user who can reach the socket may wait and compare versions.  Handing over and rebasing
// require permission to write to publish/; a hand-over must also come from the directory's owner or
// root.  Pinning is for root and the daemon's user (SO_PEERCRED).  A client that sends anything
// else gets an error and is closed.  One that sends nothing costs a descriptor, for at most
// kAskTimeout.
//
// Threads: a ControlServer has one thread that replies, one that hands over and rebases, and one
// that compares versions.  A waiting client costs a descriptor, but no thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "fs/control/requests.hpp"
#include "store/base/context.hpp"
#include "store/inspect/patch_diff.hpp"
#include "store/local/eviction.hpp"

namespace weightfs::fs {

/// Concurrent clients.  The last kOwnerClients places are for root and the daemon's user; of the
/// others a user gets half of those that are left.
inline constexpr std::size_t kControlClientsMax = 512;
inline constexpr std::size_t kOwnerClients = 64;
/// The time for a request to arrive.
inline constexpr std::chrono::seconds kAskTimeout{10};

/// What the server calls.  `wait` is called again whenever something may have changed, at least
/// twice a second, with the state kept for that client; nullopt: not yet.
struct ControlHandlers {
  struct WaitState {
    std::optional<std::uint64_t> order = {};  // the hand-over that the tag was found to mean
    /// For WaitFor::ready with a version: prevents its eviction while it is fetched.
    std::optional<Eviction::Reservation> comes = {};
  };
  std::function<std::optional<WaitEnd>(const WaitFor&, WaitState&)> wait;
  /// Returns: the order.
  /// Throws Error.  The context stops when the client disconnects.  Empty: not a writer's mount.
  std::function<std::uint64_t(const HandOverRequest&, Caller peer, const Context&)> hand_over = {};
  /// The same; may send requests to the bucket.
  std::function<PublishQueue::Rebased(Caller peer, const Context&)> rebase = {};
  /// See LoaderPins.  Called only for root and the daemon's user.  Must be quick.
  std::function<std::uint64_t(const PinRequest&)> pin = {};
  std::function<std::size_t(const UnpinRequest&)> unpin = {};
  /// A page of the comparison; nullopt: patches do not lead from the one version to the other.
  /// Throws Error; the context as of hand_over.  Called by one thread.
  std::function<std::optional<PatchDiffPage>(const DiffRequest&, const Context&)> diff = {};
};

class ControlServer {
 public:
  /// Makes the directory and listens.  Replaces a stale socket of a dead daemon.
  /// Throws Error: busy (a daemon listens there), exists (something else is there), permission (the
  /// directory is another user's), io.
  ControlServer(const std::filesystem::path& path, ControlHandlers handlers);
  ~ControlServer();  // closes all connections and removes the socket

  /// Something may have changed: the conditions of waiting clients are checked.  From any thread.
  void notify() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
