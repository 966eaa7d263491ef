// Mount users: the processes that keep a mount busy, and the copies that keep its file system.
//
// Threads: pure functions of the system's state.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fs/mount/mount_info.hpp"

namespace weightfs::fs {

/// Pids of processes that have a file below `path` open or mapped, or their working directory
/// there.
std::vector<int> users_of(const std::filesystem::path& path);

/// "pid 12 (python3), pid 13 (cat) and 4 more", for messages.
std::string describe_users(const std::vector<int>& pids);

/// Where a mount namespace has a file system.
struct MountCopies {
  std::vector<int> pids;  // the processes of the namespace; empty: of this one
  std::vector<std::filesystem::path> paths;
};

/// Where the file system of `mount`, which itself may be unmounted, is mounted: bind mounts here,
/// and copies that other mount namespaces made when they began, which an unmount here does not
/// reach.  Leaves out the processes that this user may not look at.
std::vector<MountCopies> copies_of(const MountInfo& mount);

}  // namespace weightfs::fs
