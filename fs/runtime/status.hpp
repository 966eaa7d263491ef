// Status: the texts of .weightfs/status and .weightfs/health.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <string>

#include "fs/runtime/daemon_state.hpp"

namespace weightfs::fs {

/// JSON, one field per line.  `now`: seconds since 1970.
std::string status_text(const DaemonState& state, std::int64_t now);

/// health_text(), as a line.
std::string health_file_text(const DaemonState& state, std::int64_t now);

}  // namespace weightfs::fs
