// Status: the text of .weightfs/status.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <string>

#include "fs/runtime/daemon_state.hpp"

namespace weightfs::fs {

/// JSON, one field per line.  `now`: seconds since 1970.
std::string status_text(const DaemonState& state, std::int64_t now);

}  // namespace weightfs::fs
