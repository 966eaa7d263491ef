// Doctor of hooks: what is dangerous about the engines that this host tells versions.
//
// Threads: pure functions of the system's state.
#pragma once

#include <string>
#include <vector>

#include "fs/hooks/listeners.hpp"
#include "store/base/json.hpp"

namespace weightfs::fs {

/// `status`: of a mount or a sync, as .weightfs/status has it.  One sentence for each engine whose
/// development endpoints others can reach.
std::vector<std::string> hook_warnings(const Json& status, const std::vector<Listener>& listeners);

/// The same of all mounts of this host whose daemon answers, and of `target`, if it is the
/// directory of a sync that is running: nobody can list those.
std::vector<std::string> find_hook_warnings(const std::string& target);

}  // namespace weightfs::fs
