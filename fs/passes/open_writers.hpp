// OpenWriters: finds processes that have a file of this mount open for writing, or mapped from such
// a descriptor.
//
// Files are identified by the mount's device number and the inode.  It misses processes that cannot
// be inspected (another PID namespace, no permission), and what fs/base/process_files.hpp does not
// see.
//
// Threads: pure functions of the system's state.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "fs/base/inode.hpp"

namespace weightfs::fs {

struct Holder {
  pid_t pid = 0;
  std::string command;  // /proc/PID/comm
  Inode inode = 0;      // one of those that it holds
};

/// `device`: st_dev of the mount.
/// Returns: one Holder for each process except this one, in ascending order of pid.
std::vector<Holder> find_writers(dev_t device, const std::vector<Inode>& inodes);

}  // namespace weightfs::fs
