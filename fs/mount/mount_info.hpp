// Mount info: the mounts of this mount namespace, as /proc/self/mountinfo tells them.
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

/// The same of the mounts that there are now.
std::optional<MountInfo> topmost_at(const std::filesystem::path& canonical);

/// The topmost mount exactly at `path` (made canonical without touching a dead mount).
std::optional<MountInfo> find_mount(const std::filesystem::path& path);

/// Canonical, but asks the file system only about the parents of what is a mount point: any call on
/// a dead mount fails.  A path that does not exist stays as it is below its parent.
/// Throws Error: invalid (too many symlinks).
std::filesystem::path canonical_mount_point(std::filesystem::path path);

/// What the kernel writes as \ooo in /proc: space, tab, newline and backslash.
std::string unescape_octal(std::string_view text);

}  // namespace weightfs::fs
