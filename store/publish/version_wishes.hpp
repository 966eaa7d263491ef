// Version wishes: what a version is to be, as whoever publishes it asks for; the same for `weightfs
// publish`, for a hand-over, and in the hand-over's record.
//
// Threads: a value; pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs {

/// Metadata of a rollback: the version whose content it has.
inline constexpr std::string_view kRollbackKey = "rollback";

struct VersionWishes {
  std::string tag = {};  // may be empty
  std::map<std::string, std::string> meta = {};
  std::vector<std::string> include = {};  // globs in addition to the built-in patterns
  bool snapshot = false;  // its full bytes too; without a delta if the parent's bytes are
                          // damaged
  bool rebase = false;    // follows whatever version is the newest when it is committed
  /// Not 0: the content of this version, a rollback, and no files.  The manifest's metadata say so:
  /// kRollbackKey.  It has no snapshot.
  std::uint64_t rollback = 0;
};

/// Throws Error: invalid (a tag that cannot be a name, reserved metadata, what is not text, or too
/// long).
void check_wishes(const VersionWishes& wishes);

}  // namespace weightfs
