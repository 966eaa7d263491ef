// Control: questions to a daemon that a file cannot answer: waiting for a version, handing over
// with options.  A Unix socket; one JSON object a line, each way; docs/architecture/hooks.md,
// "Control".
//
// Any user who can reach the socket may wait; handing over and rebasing are for who may write into
// publish/, handing over for the owner of the directory and root, pinning for root and the daemon's
// user (SO_PEERCRED).  A client that sends something
// else gets an error and is closed; one that sends nothing costs a descriptor, for at most
// kAskTimeout.
//
// Threads: a ControlServer has a thread that answers, and one that hands over and rebases; waiting
// clients cost a descriptor each, no thread.
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
#include "store/local/eviction.hpp"

namespace weightfs::fs {

/// Clients at the same time.  The last kOwnerClients places are for root and the daemon's user.
inline constexpr std::size_t kControlClientsMax = 512;
inline constexpr std::size_t kOwnerClients = 64;
/// For a request to arrive.
inline constexpr std::chrono::seconds kAskTimeout{10};

/// What the server asks.  `wait` is called again whenever something may have changed, at least
/// twice a second, with the state that it keeps for that client; nullopt: not yet.
struct ControlHandlers {
  struct WaitState {
    std::optional<std::uint64_t> order = {};  // of the hand-over that the tag was found to mean
    /// Of WaitFor::ready with a version: it stays while it comes.
    std::optional<Eviction::Reservation> comes = {};
  };
  std::function<std::optional<WaitEnd>(const WaitFor&, WaitState&)> wait;
  /// Returns: the order.  Throws Error.  The context stops when the client goes away.  Empty: this
  /// mount is no writer's.
  std::function<std::uint64_t(const HandOverRequest&, Caller peer, const Context&)> hand_over = {};
  /// The same; may ask the bucket.
  std::function<PublishQueue::Rebased(Caller peer, const Context&)> rebase = {};
  /// See LoaderPins; only root and the daemon's own user come here.  Must be quick.
  std::function<std::uint64_t(const PinRequest&)> pin = {};
  std::function<std::size_t(const UnpinRequest&)> unpin = {};
};

class ControlServer {
 public:
  /// Listens.  Makes the directory.  A stale socket of a dead daemon is replaced.
  /// Throws Error: busy (a daemon listens there), exists (there is something else), permission
  /// (the directory is another user's), io.
  ControlServer(const std::filesystem::path& path, ControlHandlers handlers);
  ~ControlServer();  // closes all connections and removes the socket

  /// Something may have changed: waiting clients are looked at.  From any thread.
  void notify() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs::fs
