// Hook: how one kind of engine is asked for its version and told another one.
//
// A hook only speaks the engine's protocol.  When to ask, when to tell, what to do about a failure
// and what to remember is the reconciler's (fs/hooks/reconciler.hpp), the same for every kind.
//
// Threads: one call at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "store/base/context.hpp"

namespace weightfs::fs {

/// A version as an engine is told it: complete, here, and never another one under the same path.
struct HookTarget {
  std::uint64_t version = 0;
  std::filesystem::path path;  // MOUNTPOINT/versions/N, absolute
  std::string tag;             // "": it has none
};

class Hook {
 public:
  virtual ~Hook() = default;

  /// The version that the engine says it has; 0: none of ours; nullopt: it cannot say.
  /// Throws Error; TransportError where it cannot be reached.
  virtual std::optional<std::uint64_t> find_reported(const Context& context) = 0;

  /// Makes the engine load the version; returns when it has.  After a failure it must be told again
  /// before it is right: a reload that broke off leaves an engine between two versions.
  /// Throws Error, saying which step failed and what to do; TransportError.
  virtual void tell(const HookTarget& target, const Context& context) = 0;

  /// Whether what it was told still holds when this daemon was started anew (a command has run once
  /// for all), or must be asked or told again (an engine may have been restarted meanwhile).
  [[nodiscard]] virtual bool is_told_for_good() const noexcept { return false; }
};

}  // namespace weightfs::fs
