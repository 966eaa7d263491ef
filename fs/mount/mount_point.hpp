// Mount points: where a mount may go, and how a mount is removed.
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
  alive,  // also if there is no daemon behind it
  dead,   // the daemon is gone (ENOTCONN)
  silent  // it does not answer within 5 s: stopped, or starved
};

/// Checks `path` in a child process: a caller that waits for a stopped daemon waits for ever.
Liveness liveness_of(const std::filesystem::path& path);
bool is_dead(const std::filesystem::path& path);

/// Where a mount may go.
struct MountPlace {
  std::filesystem::path path;       // canonical
  std::vector<std::string> hidden;  // names in the directory that the mount will hide
};

enum class NonEmpty { refused, allowed };

/// Checks that a mount may go to `path`.  A dead mount of ours, with its bind mounts
/// (fs/mount/bind_mounts.hpp), may be there.  Root's stays until attach_mount() replaces it, so
/// that the directory below never shows; another user's is unmounted.
/// Throws Error: not_found (absent: says mkdir), invalid (not a directory, or not empty: names what
/// is in it), exists (already a weightfs mount: says which URL), timed_out (its daemon does not
/// answer), busy (another file system is mounted there, or inside a dead mount of ours).
MountPlace prepare_mount_point(const std::filesystem::path& path,
                               NonEmpty non_empty = NonEmpty::refused);

/// "a, b, c and 4 more".
std::string shown_names(const std::vector<std::string>& names);

/// Unmounts, lazily, the topmost mounts at a canonical path as long as they are dead mounts of
/// ours.
/// Throws Error: busy (another file system is mounted inside one), io.
void unmount_dead(const std::filesystem::path& canonical);

/// Whether a mount's daemon answers.  If not, no path into the mount may be walked: that takes as
/// long as the daemon is silent, and the process cannot be killed meanwhile.
enum class Answering { yes, no };

/// Unmounts a weightfs mount with its bind mounts.  If it is busy, some of these may be gone; the
/// daemon makes them again.  A user that is not visible here may only be passing, so it is given a
/// second.
/// Throws Error: busy, naming the processes that use it, or what else is mounted in it; permission;
/// not_found (not a weightfs mount).
void unmount(const std::filesystem::path& path, bool lazy, Answering answering = Answering::yes);

}  // namespace weightfs::fs
