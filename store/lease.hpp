// Lease: asks the kernel who has a file open.  It grants a write lease only if nobody else has the
// file open or mapped, through the mount's passthrough too, and a read lease only if nobody can
// write.  The lease is given back at once.
//
// Requires: the process ignores SIGIO, which an open(2) during the probe sends it.
//
// Threads: pure functions.
#pragma once

namespace weightfs {

enum class Writers {
  none,
  some,    // the file is open for writing, or mapped from such a descriptor
  unknown  // another user's file, or a file system without leases
};

/// Whether somebody can write to a file now.  `fd`: open for reading only.
Writers find_writers(int fd);

}  // namespace weightfs
