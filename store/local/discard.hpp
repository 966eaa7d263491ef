// Discard: removes files so that nobody ever sees them half removed.
//
// Threads: pure function.
#pragma once

#include <filesystem>

namespace weightfs {

/// Renames a file or directory into `temporary`, then removes it there.  Nothing if it is absent.
/// What cannot be removed stays, with a warning in the log.
void discard(const std::filesystem::path& path, const std::filesystem::path& temporary);

}  // namespace weightfs
