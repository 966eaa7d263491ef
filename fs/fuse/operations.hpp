// FUSE operations: thin adapters between libfuse and the tree, the open table and the request pool.
//
// Threads: the operations run on the session's threads and on the pool's; a Server is shared by
// all.
#pragma once

#include <sys/uio.h>

#include "fs/fuse/server.hpp"

namespace weightfs::fs {

fuse_lowlevel_ops make_operations();

/// Takes the place of writev(2) in libfuse: adds what an old one cannot say.
ssize_t write_reply(int fd, iovec* parts, int count, void* server);

}  // namespace weightfs::fs
