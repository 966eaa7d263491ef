// Holders: which processes have a file of this mount open for writing, or mapped from such a
// descriptor.
//
// It reads /proc/PID/fdinfo and /proc/PID/maps only, and never follows a link into the mount: a
// daemon that looks at its own mount waits for itself.  Files are recognised by the mount's device
// number and the inode.
//
// Threads: pure functions of the system's state.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "fs/inode.hpp"

namespace weightfs::fs {

struct Holder {
  pid_t pid = 0;
  std::string command;  // /proc/PID/comm
  Inode inode = 0;      // one that it holds
};

/// `device`: of the mount, as MountInfo has it.  Processes that cannot be looked at (another PID
/// namespace, no permission) are not found.  Ascending by pid.
std::vector<Holder> find_writers(dev_t device, const std::vector<Inode>& inodes);

}  // namespace weightfs::fs
