// Control: questions to a daemon that a file cannot answer: waiting for a version, handing over
// with options.  A Unix socket; one JSON object a line, each way; docs/ARCHITECTURE.md, "Control".
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

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fs/loader_pins.hpp"
#include "store/context.hpp"
#include "store/eviction.hpp"
#include "store/publish_queue.hpp"

namespace weightfs::fs {

/// /run/weightfs for root, else $XDG_RUNTIME_DIR/weightfs; empty if there is none.
std::filesystem::path runtime_directory();

/// Where the daemon of a store listens: /run/weightfs/<16 hex digits>.sock for root, else below
/// $XDG_RUNTIME_DIR/weightfs, else in the store.  The digits are of the SHA-256 of the store's
/// path.
std::filesystem::path control_path(const std::filesystem::path& store);

/// Clients at the same time.  The last kOwnerClients places are for root and the daemon's user.
inline constexpr std::size_t kControlClientsMax = 512;
inline constexpr std::size_t kOwnerClients = 64;
/// For a request to arrive.
inline constexpr std::chrono::seconds kAskTimeout{10};

/// Exactly one is given; with `ready` a version, or nothing else: what `latest` is.
struct WaitFor {
  std::optional<std::string> tag = {};
  std::optional<std::uint64_t> version = {};
  std::optional<std::uint64_t> newer_than = {};
  std::optional<std::uint64_t> order = {};  // of a hand-over: for `publish`
  bool ready = false;                       // until all of its images are here
};

/// The end of a wait.
struct WaitEnd {
  enum class How {
    here,        // the bucket has it, and versions/N opens
    gone,        // its image is not here and will not come
    failed,      // the hand-over that was meant cannot be published; an image cannot be made
    damaged,     // an image cannot be made: an object of the bucket is not what it should be
    taken_back,  // or was taken back, or removed
    conflict     // another writer published first
  };
  How how{};
  std::uint64_t version = 0;  // of `here` and `gone`
  std::string message;        // not `here`: why
  std::string left;           // see HandOverEnd
};

struct HandOverRequest {
  std::string path;  // of the directory, below staging/
  std::string name;  // in publish/; empty: one is made up, and there is no tag
  HandOverOptions options;
};

/// After a conflict: see PublishQueue::rebase.
struct RebaseRequest {};

/// Keeps the images of a version.
struct PinRequest {
  std::uint64_t version = 0;  // 0: what `latest` is
};

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

/// The client's side; blocks, can be killed, and ends with Error cancelled when context.stop fires.
/// A hand-over is then taken back; if that comes too late its order is returned all the same.
/// Throws Error: unavailable (no daemon there, or it ended meanwhile), timed_out, and what the
/// daemon says.
WaitEnd control_wait(const std::filesystem::path& socket, const WaitFor& what,
                     const Context& context);
std::uint64_t control_hand_over(const std::filesystem::path& socket, const HandOverRequest& request,
                                const Context& context);
PublishQueue::Rebased control_rebase(const std::filesystem::path& socket,
                                     const RebaseRequest& request, const Context& context);
/// Returns: the version.
std::uint64_t control_pin(const std::filesystem::path& socket, const PinRequest& request,
                          const Context& context);
/// Returns: how many pins ended.
std::uint64_t control_unpin(const std::filesystem::path& socket, const UnpinRequest& request,
                            const Context& context);

}  // namespace weightfs::fs
