// Mount points: what /proc/self/mountinfo says, the rules for where a mount may go, and the calls
// that mount and unmount: those of Linux 5.2 for root (fsopen, fsmount, move_mount), else mount(2);
// fusermount3 for a user's own mount.  fs/session_mount.hpp puts them together.
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

/// The topmost of the mounts exactly at a canonical path.
std::optional<MountInfo> topmost_mount(const std::vector<MountInfo>& mounts,
                                       const std::filesystem::path& canonical);

/// The topmost mount exactly at `path` (made canonical without touching a dead mount).
std::optional<MountInfo> find_mount(const std::filesystem::path& path);

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
/// (fs/bind_mounts.hpp), may be there: root's stays until attach_mount() replaces it, so that the
/// directory below never shows; a user's own is unmounted.
/// Throws Error: not_found (absent: says mkdir), invalid (no directory, or not empty: names what is
/// in it), exists (already a weightfs mount: says which URL), timed_out (one whose daemon does not
/// answer), busy (another file system is mounted there, or inside a dead mount of ours).
MountPlace prepare_mount_point(const std::filesystem::path& path,
                               NonEmpty non_empty = NonEmpty::refused);

/// "a, b, c and 4 more".
std::string shown_names(const std::vector<std::string>& names);

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

/// Unmounts, lazily, the dead mounts of ours that are topmost at a canonical path, one after
/// another.  Throws Error: busy (another file system is mounted inside one), io.
void unmount_dead(const std::filesystem::path& canonical);

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
