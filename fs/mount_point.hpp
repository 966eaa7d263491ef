// Mount points: what /proc/self/mountinfo says, the rules for where a mount may go, and the calls
// that mount and unmount: mount(2) and umount2(2) for root, fusermount3 for a user's own mount.
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

#include "store/file.hpp"

namespace weightfs::fs {

inline constexpr std::string_view kMountType = "fuse.weightfs";

struct MountInfo {
  std::filesystem::path path;
  std::string type;               // "fuse.weightfs"
  std::string source;             // our URL
  unsigned major = 0, minor = 0;  // of st_dev
  int id = 0, parent = 0;         // of the mount, and of the one that it is in
  std::string root = {};          // what of the file system is mounted: "/", or a path within it

  friend bool operator==(const MountInfo&, const MountInfo&) = default;
};

/// Parses the text of a mountinfo file; lines it does not understand are left out.
std::vector<MountInfo> parse_mounts(std::string_view mountinfo);

/// All mounts of this mount namespace, oldest first.
std::vector<MountInfo> read_mounts();

/// The mounts inside another one, at any depth, oldest first.
std::vector<MountInfo> mounts_inside(const std::vector<MountInfo>& mounts, const MountInfo& outer);

/// Device of the file system that holds `path`, as /proc tells it of open files and mappings; for
/// some file systems (btrfs) st_dev is another one.
dev_t proc_device(const std::filesystem::path& path);

/// The topmost mount exactly at `path` (made canonical without touching a dead mount).
std::optional<MountInfo> find_mount(const std::filesystem::path& path);

/// True if the daemon behind a FUSE mount is gone (ENOTCONN).
bool is_dead(const std::filesystem::path& path);

/// Checks that a mount may go to `path`; a dead mount of ours is unmounted first, with the bind
/// mounts in it (fs/bind_mounts.hpp).
/// Throws Error: not_found (absent: says mkdir), invalid (no directory, not empty), exists (already
/// a weightfs mount: says which URL), busy (another file system is mounted there, or inside a dead
/// mount of ours).
/// Returns: the canonical path.
std::filesystem::path prepare_mount_point(const std::filesystem::path& path);

enum class Access { read_only, writable };

/// Mounts a weightfs at a canonical path.  Root's mount is for all users, a user's own mount is
/// private.
///
/// Returns: the connection (/dev/fuse).  Nobody serves it yet: nothing may touch `path` before INIT
/// is answered. Throws Error: permission, unsupported (no FUSE in the kernel, no fusermount3), io.
File mount_connection(const std::filesystem::path& path, const std::string& source,
                      Access access = Access::read_only);

/// Unmounts what is topmost at `path`, without looking at what it is.
/// Returns: 0, or the errno: EBUSY, EPERM, EINVAL (nothing mounted).
int try_unmount(const std::filesystem::path& path, bool lazy) noexcept;

/// Whether the daemon of a mount answers.  If not, a path into the mount is not to be walked: that
/// takes as long as the daemon is silent, and the walker cannot be killed.
enum class Answering { yes, no };

/// Unmounts a weightfs, with the bind mounts in it.  If it is busy, some of these may be gone; the
/// daemon makes them again.
/// Throws Error: busy, naming the processes that use it, or what else is mounted in it; permission;
/// not_found (no weightfs mount).
void unmount(const std::filesystem::path& path, bool lazy, Answering answering = Answering::yes);

/// Pids that have a file below `path` open or mapped, or their working directory there.
std::vector<int> users_of(const std::filesystem::path& path);

}  // namespace weightfs::fs
