// Doctor of hooks: security risks of the engines that this host updates.
//
// Threads: pure functions of the system's state.
#pragma once

#include <string>
#include <vector>

#include "fs/hooks/listeners.hpp"
#include "store/base/json.hpp"

namespace weightfs::fs {

/// `status`: of a mount or a sync, as in .weightfs/status.  One sentence for each engine whose
/// development endpoints others can reach.
std::vector<std::string> hook_warnings(const Json& status, const std::vector<Listener>& listeners);

/// The same for all mounts of this host whose daemon answers, and for `target`, if that is the
/// directory of a running sync: those cannot be listed.
std::vector<std::string> find_hook_warnings(const std::string& target);

}  // namespace weightfs::fs
