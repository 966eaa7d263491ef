// Discard: removes files so that they are never seen half removed.
//
// Threads: pure function.
#pragma once

#include <filesystem>

namespace weightfs {

/// Renames a file or directory into `temporary`, then removes it there.  Does nothing if it is
/// absent. Logs a warning about what cannot be removed.
void discard(const std::filesystem::path& path, const std::filesystem::path& temporary);

}  // namespace weightfs
