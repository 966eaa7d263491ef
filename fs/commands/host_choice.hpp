// Host choice: completes the host options of a mount or a sync.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "fs/cli/options.hpp"
#include "fs/runtime/host_options.hpp"

namespace weightfs::fs {

/// Adds to the command line's options: the canonical URL, the bucket options that apply to it, the
/// absolute path of the store, and the shell line that runs the command `name` again.
/// Throws Error: invalid (the URL).
HostOptions host_options(const Options& options, const std::string& name);

}  // namespace weightfs::fs
