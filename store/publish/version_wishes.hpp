// Version wishes: what a version is to be, as whoever publishes it asks for; the same for `weightfs
// publish`, for a hand-over, and in the hand-over's record.
//
// Threads: a value; pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace weightfs {

struct VersionWishes {
  std::string tag = {};  // may be empty
  std::map<std::string, std::string> meta = {};
  std::vector<std::string> include = {};  // globs in addition to the built-in patterns
  bool snapshot = false;  // its full bytes too; without a delta if the parent's bytes are
                          // damaged
  bool rebase = false;    // follows whatever version is the newest when it is committed
};

/// Throws Error: invalid (a tag that cannot be a name, reserved metadata, what is not text, or too
/// long).
void check_wishes(const VersionWishes& wishes);

}  // namespace weightfs
