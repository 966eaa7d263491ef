// Mount calls: mounting and unmounting a file system.  Root uses the system calls of Linux 5.2
// (fsopen, fsmount, move_mount), or mount(2); other users use fusermount3.
// fs/mount/session_mount.hpp combines them.
//
// Threads: pure functions of the system's state.
#pragma once

#include <filesystem>
#include <string>

#include "store/os/file.hpp"

namespace weightfs::fs {

/// Throws Error: as make_mount(), if /dev/fuse is missing, or root may not open it.
void require_fuse(const std::string& source);

enum class Access { read_only, writable };

/// A connection (/dev/fuse) and the mount that it serves.
struct NewMount {
  File connection;
  File tree;  // a detached mount; empty: it is attached already
};

/// Makes a mount of weightfs.  Root's is for all users, and is detached until attach_mount(),
/// except before Linux 5.2; another user's is private, and fusermount3 attaches it.
///
/// Returns: a mount that is not served yet.  If it is attached, nothing may touch `path` before
/// INIT is answered.
/// Throws Error: permission, unsupported (no FUSE in the kernel, no fusermount3), io.
NewMount make_mount(const std::filesystem::path& path, const std::string& source,
                    Access access = Access::read_only);

enum class Replacing {
  beneath,  // replaces the existing mount if the kernel can (Linux 6.5)
  on_top    // covers the existing mount
};

/// Attaches a mount at a canonical path.  The directory below is never visible.
/// Throws Error: permission, io.
void attach_mount(const File& tree, const std::filesystem::path& path,
                  Replacing how = Replacing::beneath);

/// Unmounts the topmost mount at `path`, whatever it is.
/// Returns: 0, or the errno: EBUSY, EPERM, EINVAL (nothing mounted).
int try_unmount(const std::filesystem::path& path, bool lazy) noexcept;

}  // namespace weightfs::fs
