// FUSE operations on what trainers write: thin adapters between libfuse, Staging and PublishQueue.
// fuse_ops hands over each operation whose inode, or parent, is one of staging's.
//
// Names directly below the two roots are never cached (a rename to publish/ and the end of a
// publish change what is under them); deeper names and attributes for a second.  What may take time
// (fsync, fallocate, truncate, a rename into publish/, reads and writes that the daemon serves) is
// parked.
//
// Threads: as fuse_ops.hpp.
#pragma once

#include <string_view>

#include "fs/fuse_ops.hpp"

namespace weightfs::fs {

/// What a writer's mount has beside a reader's; nullptrs on a reader's.
struct Writing {
  Staging* staging = nullptr;
  PublishQueue* queue = nullptr;
};

/// errno of a refused hand-over: what mv shows.  Never one that the kernel or mv misreads.
int to_hand_over_errno(ErrorCode code) noexcept;

}  // namespace weightfs::fs
