// Child call: a call on a path that may never return, made by a child process.
//
// A daemon that is stopped never answers, and a caller that waits for it in the kernel cannot end
// its wait, in some calls not even by SIGKILL.  So a child makes the call, and is killed and left
// behind if it takes too long.
//
// Threads: may be called from any thread of a process with many.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace weightfs::fs {

/// How a call ended that a child has made.
struct ChildAnswer {
  int error = 0;     // what the call returned: 0, or an errno
  std::string text;  // what it wrote
};

/// What a child is to do with a path.  It writes to the descriptor, and returns 0 or an errno.
/// Requires: it calls nothing but what is safe behind a fork.
using ChildCall = int (*)(const char* path, int to);

/// Makes the call in a child, which inherits no descriptors.
///
/// Returns: nullopt if it has not ended in time.
/// Throws Error: io (no process can be started); corrupt (it writes more than 16 MiB).
std::optional<ChildAnswer> call_in_child(ChildCall call, const std::filesystem::path& path,
                                         std::chrono::milliseconds timeout);

}  // namespace weightfs::fs
