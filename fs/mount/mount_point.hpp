// Mount points: the rules for where a mount may go, and how one is taken away.
//
// Threads: pure functions of the system's state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fs/mount/mount_info.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {

enum class Liveness {
  alive,  // also: no daemon is behind it
  dead,   // the daemon is gone (ENOTCONN)
  silent  // it does not answer within 5 s: stopped, or starved
};

/// Asks what is at `path`, in a child process: whoever waits for a stopped daemon waits for ever.
Liveness liveness_of(const std::filesystem::path& path);
bool is_dead(const std::filesystem::path& path);

/// Where a mount may go.
struct MountPlace {
  std::filesystem::path path;       // canonical
  std::vector<std::string> hidden;  // names in the directory, which the mount will hide
};

enum class NonEmpty { refused, allowed };

/// Checks that a mount may go to `path`.  A dead mount of ours, and the bind mounts in it
/// (fs/mount/bind_mounts.hpp), may be there: root's stays until attach_mount() replaces it, so that
/// the directory below never shows; a user's own is unmounted. Throws Error: not_found (absent:
/// says mkdir), invalid (no directory, or not empty: names what is in it), exists (already a
/// weightfs mount: says which URL), timed_out (one whose daemon does not answer), busy (another
/// file system is mounted there, or inside a dead mount of ours).
MountPlace prepare_mount_point(const std::filesystem::path& path,
                               NonEmpty non_empty = NonEmpty::refused);

/// "a, b, c and 4 more".
std::string shown_names(const std::vector<std::string>& names);

/// Unmounts, lazily, the dead mounts of ours that are topmost at a canonical path, one after
/// another.  Throws Error: busy (another file system is mounted inside one), io.
void unmount_dead(const std::filesystem::path& canonical);

/// Whether the daemon of a mount answers.  If not, a path into the mount is not to be walked: that
/// takes as long as the daemon is silent, and the walker cannot be killed.
enum class Answering { yes, no };

/// Unmounts a weightfs, with the bind mounts in it.  If it is busy, some of these may be gone; the
/// daemon makes them again.
/// Throws Error: busy, naming the processes that use it, or what else is mounted in it; permission;
/// not_found (no weightfs mount).
void unmount(const std::filesystem::path& path, bool lazy, Answering answering = Answering::yes);

}  // namespace weightfs::fs
