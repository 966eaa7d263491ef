// Doctor of hooks: what is dangerous about the engines that this host's mounts tell versions.
//
// Threads: pure functions of the system's state.
#pragma once

#include <string>
#include <vector>

#include "fs/listeners.hpp"
#include "store/json.hpp"

namespace weightfs::fs {

/// `status`: of a mount, as .weightfs/status has it.  One sentence for each engine whose
/// development endpoints others can reach.
std::vector<std::string> hook_warnings(const Json& status, const std::vector<Listener>& listeners);

/// The same of all mounts of this host whose daemon answers.
std::vector<std::string> find_hook_warnings();

}  // namespace weightfs::fs
