// Host choice: the host options of a mount or a sync, complete.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "fs/cli/options.hpp"
#include "fs/runtime/host_options.hpp"

namespace weightfs::fs {

/// Adds to what the command line says: the canonical URL, the bucket options that hold for it, the
/// absolute path of the store, and the command, whose name is `name`, as a line to run it again.
/// Throws Error: invalid (the URL).
HostOptions host_options(const Options& options, const std::string& name);

}  // namespace weightfs::fs
