// Child call: runs a call on a path that may never return in a child process.
//
// A stopped daemon never answers, and a caller that waits for it in the kernel cannot be
// interrupted, in some calls not even by SIGKILL. So a child makes the call; if it takes too long
// it is killed and left behind.
//
// Threads: may be called from any thread of a multithreaded process.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace weightfs::fs {

/// The outcome of a call that a child has made.
struct ChildAnswer {
  int error = 0;     // what the call returned: 0, or an errno
  std::string text;  // what the call wrote
};

/// What the child does with the path.  It writes to the descriptor `to`, and returns 0 or an errno.
/// Requires: it calls only what is safe after fork().
using ChildCall = int (*)(const char* path, int to);

/// Who makes the call: not even root may look into another user's FUSE mount.
struct ChildUser {
  unsigned user = 0, group = 0;
};

/// Makes the call in a child that inherits no other descriptors.
/// `as`: another user, for root; nullopt: the caller.
///
/// Returns: nullopt on timeout.
/// Throws Error: io (no process can be started); corrupt (it writes more than 16 MiB).
std::optional<ChildAnswer> call_in_child(ChildCall call, const std::filesystem::path& path,
                                         std::chrono::milliseconds timeout,
                                         std::optional<ChildUser> as = std::nullopt);

}  // namespace weightfs::fs
