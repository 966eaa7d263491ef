// Bind mounts: the image directory of a complete version, mounted read-only over its directory
// MOUNTPOINT/versions/N, so that reads and maps never reach the daemon.
//
// What is bound is what /proc/self/mountinfo says: the kernel takes a bind mount away by itself
// when the name below it goes, and a daemon that was killed leaves its own behind.  A bind mount
// counts as ours if it lies directly in a weightfs mount, at versions/N, and shows a directory
// images/N.
//
// It is made with the system calls of Linux 5.12: there is no moment when it is writable.
//
// Threads: pure functions of the system's state.  bind_version() and unbind() walk a path through
// the mount: whoever serves that mount must not wait for them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fs/mount/mount_info.hpp"

namespace weightfs::fs {

struct BindState {
  bool available = false;
  std::string why_not;  // in words, for status
};

/// Whether directories below `directory` can be bound: tried without mounting anything anywhere.
BindState try_bind(const std::filesystem::path& directory);

/// Mounts `directory` over `over`: read-only, nosuid, nodev, and else as its file system is.
/// Throws Error: permission; unsupported; not_found; io.
void bind_directory(const std::filesystem::path& directory, const std::filesystem::path& over);

/// Unmounts what is topmost at `path`, if it is not in use.
/// Returns: 0, or the errno: EBUSY (somebody has something open or mapped there), ENOENT or EINVAL
/// (nothing is mounted there).
int unbind(const std::filesystem::path& path) noexcept;

struct BindMount {
  std::uint64_t version = 0;
  std::filesystem::path path;  // MOUNTPOINT/versions/N
};

/// The version that `inner` shows, if it is a bind mount of ours in the weightfs mount `mount`.
std::optional<std::uint64_t> bound_version(const MountInfo& inner, const MountInfo& mount);

/// All of those, oldest first.
std::vector<BindMount> find_bind_mounts(const std::vector<MountInfo>& mounts,
                                        const MountInfo& mount);

}  // namespace weightfs::fs
