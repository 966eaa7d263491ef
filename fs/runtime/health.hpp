// Health: whether a mount or a sync does its work, in one word, and what troubles it.
//
//     healthy      nothing to do
//     degraded     it works, and something needs a look, or a retry
//     failed       it does not do what it is there for; somebody must act
//
// Each trouble has a word of its own as well:
//
//     conflict     failed: a hand-over is in conflict; another writer has published
//     failed       failed: a hand-over cannot be published
//     behind       failed: for longer than --max-lag there have been versions later than the one
//                  that is shown, or the bucket has not been reached
//     waiting      degraded: the sync, or a hand-over, met an error, and retries; failed: there is
//                  no version that could be read meanwhile
//     hook-failed  degraded: an engine cannot be reached, or was not brought to the version;
//                  failed: again and again
//     missing      degraded: what is followed does not exist
//     passes-full  degraded: a user has so many loaders that new ones get the newest version
//     leases       degraded: old versions stay, as nobody can tell who reads them
//     history      degraded: no patches can be taken
//     gc-failed    degraded: the last run of --gc failed
//     announce     degraded: the bucket does not take what --announce says
//
// If nothing is wrong, the state of the sync stands in place of that word: starting, fetching,
// current.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fs/runtime/daemon_state.hpp"

namespace weightfs::fs {

enum class Health { healthy, degraded, failed };
std::string_view to_string(Health health) noexcept;

struct Trouble {
  Health health = Health::degraded;
  std::string state;    // a word of the second list above
  std::string subject;  // a hand-over, an engine, a tag; empty: the mount as a whole
  std::string message;
};

/// All troubles, the worst first.  `now`: seconds since 1970.
std::vector<Trouble> troubles_of(const DaemonState& state, std::int64_t now);

/// That of the worst trouble.
Health health_of(const std::vector<Trouble>& troubles) noexcept;

/// The word of the worst trouble; the state of the sync if there is none.
std::string state_of(const DaemonState& state, const std::vector<Trouble>& troubles);

/// "degraded: step-42: the bucket does not answer; and 1 more", on one line without a newline.
std::string health_text(const std::vector<Trouble>& troubles);

}  // namespace weightfs::fs
