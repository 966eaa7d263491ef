// Mount info: the mounts of this mount namespace, or of that of a process, from its mountinfo in
// /proc.
//
// Threads: pure functions of the system's state.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

inline constexpr std::string_view kMountType = "fuse.weightfs";

struct MountInfo {
  std::filesystem::path path;
  std::string type;               // "fuse.weightfs"
  std::string source;             // the repository's URL
  unsigned major = 0, minor = 0;  // as in st_dev
  int id = 0, parent = 0;         // of the mount, and of the mount that contains it
  std::string root = {};          // the mounted part of the file system: "/", or a path within it
  unsigned user = 0, group = 0;   // of a FUSE mount: who mounted it

  friend bool operator==(const MountInfo&, const MountInfo&) = default;
};

/// Parses the text of a mountinfo file; skips lines that it does not understand.
std::vector<MountInfo> parse_mounts(std::string_view mountinfo);

/// All mounts of this mount namespace, oldest first.
std::vector<MountInfo> read_mounts();

/// The same of the mount namespace of a process, with the paths that it sees.  Empty if the process
/// has ended, or this user may not look.
std::vector<MountInfo> read_mounts_of(pid_t pid);

/// The mounts inside another one, at any depth, oldest first.
std::vector<MountInfo> mounts_inside(const std::vector<MountInfo>& mounts, const MountInfo& outer);

/// The device that /proc shows for open files and mappings of the file system that holds `path`.
/// On some file systems (btrfs) it differs from st_dev.
dev_t proc_device(const std::filesystem::path& path);

/// The topmost of the mounts exactly at a canonical path.
std::optional<MountInfo> topmost_mount(const std::vector<MountInfo>& mounts,
                                       const std::filesystem::path& canonical);

/// The same, for the current mounts.
std::optional<MountInfo> topmost_at(const std::filesystem::path& canonical);

/// The topmost mount exactly at `path` (made canonical without touching a dead mount).
std::optional<MountInfo> find_mount(const std::filesystem::path& path);

/// The canonical path, found without touching a mount point itself, only its parents: any call on a
/// dead mount fails.  If the path does not exist, only its parent is made canonical.
/// Throws Error: invalid (too many symlinks).
std::filesystem::path canonical_mount_point(std::filesystem::path path);

/// Decodes the kernel's \ooo in /proc: space, tab, newline and backslash.
std::string unescape_octal(std::string_view text);

}  // namespace weightfs::fs
