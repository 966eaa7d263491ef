// Health: whether all is well with a mount or the directory of a sync, in one word, and what is
// not.
//
//     conflict     a hand-over is in conflict: another writer has published
//     failed       a hand-over cannot be published
//     waiting      the sync met an error, and tries again
//     hook-failed  an engine cannot be reached, or was not brought to the version
//     missing      what is followed does not exist
//
// and if nothing is wrong what the sync does: starting, fetching, current.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "fs/runtime/daemon_state.hpp"

namespace weightfs::fs {

struct Trouble {
  std::string state;    // a word of the above
  std::string subject;  // a hand-over, an engine, a tag; empty: the mount as a whole
  std::string message;
};

/// What is wrong, the worst first.
std::vector<Trouble> troubles_of(const DaemonState& state);

/// The word of the worst; what the sync does if there is none.
std::string health_of(const DaemonState& state, const std::vector<Trouble>& troubles);

}  // namespace weightfs::fs
