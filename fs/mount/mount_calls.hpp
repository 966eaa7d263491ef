// Mount calls: how a file system is mounted and unmounted: by the calls of Linux 5.2 for root
// (fsopen, fsmount, move_mount), else mount(2); by fusermount3 for a user's own mount.
// fs/mount/session_mount.hpp puts them together.
//
// Threads: pure functions of the system's state.
#pragma once

#include <filesystem>
#include <string>

#include "store/os/file.hpp"

namespace weightfs::fs {

/// Throws Error: as make_mount(), if /dev/fuse is not there, or root may not open it.
void require_fuse(const std::string& source);

enum class Access { read_only, writable };

/// A connection (/dev/fuse) and what is mounted by it.
struct NewMount {
  File connection;
  File tree;  // of a mount that is nowhere yet; empty: it is in its place
};

/// Makes a mount of weightfs.  Root's is for all users, and nowhere before attach_mount(), except
/// before Linux 5.2; a user's own is private, and fusermount3 puts it in its place.
///
/// Returns: nobody serves it yet: where it is in its place nothing may touch `path` before INIT is
/// answered.  Throws Error: permission, unsupported (no FUSE in the kernel, no fusermount3), io.
NewMount make_mount(const std::filesystem::path& path, const std::string& source,
                    Access access = Access::read_only);

enum class Replacing {
  beneath,  // a mount that is there is replaced, where the kernel can do that (Linux 6.5)
  on_top    // it stays below
};

/// Puts a mount in its place, at a canonical path.  At no moment does the directory below show.
/// Throws Error: permission, io.
void attach_mount(const File& tree, const std::filesystem::path& path,
                  Replacing how = Replacing::beneath);

/// Unmounts what is topmost at `path`, without looking at what it is.
/// Returns: 0, or the errno: EBUSY, EPERM, EINVAL (nothing mounted).
int try_unmount(const std::filesystem::path& path, bool lazy) noexcept;

}  // namespace weightfs::fs
