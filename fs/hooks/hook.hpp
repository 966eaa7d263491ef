// Hook: how to ask one kind of engine for its version, and how to tell it to load another.
//
// A hook only speaks the engine's protocol.  The reconciler (fs/hooks/reconciler.hpp) decides, for
// every kind of hook, when to ask, when to tell, how to handle a failure and what to remember.
//
// Threads: one call at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/context.hpp"

namespace weightfs::fs {

/// A version that an engine is told to load.  It is complete and local, and its path never names
/// another version.
struct HookTarget {
  std::uint64_t version = 0;
  std::filesystem::path path;  // MOUNTPOINT/versions/N, absolute
  std::string tag;             // "": no tag
};

/// How an engine got its last version.
struct HookUpdate {
  enum class How {
    reload,
    in_place,
    proof,  // in place, then reloaded, and both were the same
  };
  using Seconds = std::chrono::duration<double>;

  How how = How::reload;
  std::string reason;          // why it was not in place; "": it was
  Seconds stage{};             // beside the engine's work; also of a stage that failed
  Seconds pause{};             // from the call that pauses until the one that resumes was answered
  Seconds apply{};             // of the pause: until the change was in the weights; 0: reloaded
  bool keeps_running = false;  // running requests go on with the keys and values that they had
};

std::string_view to_string(HookUpdate::How how) noexcept;  // "in-place"

/// A text that a hook remembers, and that outlives the daemon.
struct HookMemory {
  std::function<std::string()> find = [] { return std::string(); };  // "": nothing
  std::function<void(const std::string& text)> save = [](const std::string&) {};
};

class Hook {
 public:
  virtual ~Hook() = default;

  /// The version that the engine reports; 0: not one of weightfs; nullopt: it cannot say.  Throws
  /// Error; TransportError if it cannot be reached.
  virtual std::optional<std::uint64_t> find_reported(const Context& context) = 0;

  /// Makes the engine load the version, and returns when it has.  After a failure it must be told
  /// again: an interrupted reload leaves an engine between two versions.  Throws Error, saying
  /// which step failed and what to do; TransportError.
  virtual void tell(const HookTarget& target, const Context& context) = 0;

  /// Whether a success still counts after a restart of this daemon (a command has run, and that is
  /// final), or the engine must be asked or told again (it may have been restarted meanwhile).
  [[nodiscard]] virtual bool is_told_for_good() const noexcept { return false; }

  /// How the last successful tell() was done; nullopt: there is only one way.
  [[nodiscard]] virtual std::optional<HookUpdate> find_update() const { return std::nullopt; }

  /// The version that the next change in place begins with; 0: the next version is no change.
  [[nodiscard]] virtual std::uint64_t base_of_change() const noexcept { return 0; }
};

}  // namespace weightfs::fs
