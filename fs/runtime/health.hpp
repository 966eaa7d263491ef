// Health: the state of a mount or a sync in one word, and its troubles.
//
//     conflict     a hand-over is in conflict: another writer has published
//     failed       a hand-over cannot be published
//     waiting      the sync met an error, and retries
//     hook-failed  an engine cannot be reached, or was not brought to the version
//     missing      what is followed does not exist
//
// If nothing is wrong, the word is the state of the sync: starting, fetching, current.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "fs/runtime/daemon_state.hpp"

namespace weightfs::fs {

struct Trouble {
  std::string state;    // a word of the list above
  std::string subject;  // a hand-over, an engine, a tag; empty: the mount as a whole
  std::string message;
};

/// All troubles, the worst first.
std::vector<Trouble> troubles_of(const DaemonState& state);

/// The word of the worst trouble; the state of the sync if there is none.
std::string health_of(const DaemonState& state, const std::vector<Trouble>& troubles);

}  // namespace weightfs::fs
