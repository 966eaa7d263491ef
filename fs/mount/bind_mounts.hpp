// Bind mounts: the image directory of a complete version, mounted read-only over its directory
// MOUNTPOINT/versions/N, so that reads and mappings bypass the daemon.
//
// /proc/self/mountinfo is the only record of what is bound: the kernel removes a bind mount by
// itself when the name below it goes, and a daemon that is killed leaves its own behind.  A bind
// mount is ours if it lies directly in a weightfs mount, at versions/N, and shows a directory
// images/N.
//
// It is made with the system calls of Linux 5.12, and is never writable, not even for a moment.
//
// Threads: pure functions of the system's state. bind_version() and unbind() walk a path through
// the mount: a thread that serves the mount must not wait for them.
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

/// Whether directories below `directory` can be bound; tried with a detached mount.
BindState try_bind(const std::filesystem::path& directory);

/// Mounts `directory` over `over`: read-only, nosuid, nodev, otherwise with the options of its file
/// system.
/// Throws Error: permission; unsupported; not_found; io.
void bind_directory(const std::filesystem::path& directory, const std::filesystem::path& over);

/// Unmounts the topmost mount at `path`, if it is not in use.
/// Returns: 0, or the errno: EBUSY (something is open or mapped there), ENOENT or EINVAL (nothing
/// is mounted there).
int unbind(const std::filesystem::path& path) noexcept;
/// The same also if it is in use: what is open stays open.
int unbind_lazily(const std::filesystem::path& path) noexcept;

struct BindMount {
  std::uint64_t version = 0;
  std::filesystem::path path;  // MOUNTPOINT/versions/N
};

/// The version that `inner` shows, if `inner` is one of our bind mounts in the weightfs mount
/// `mount`.
std::optional<std::uint64_t> bound_version(const MountInfo& inner, const MountInfo& mount);

/// All bind mounts of ours in `mount`, oldest first.
std::vector<BindMount> find_bind_mounts(const std::vector<MountInfo>& mounts,
                                        const MountInfo& mount);

}  // namespace weightfs::fs
