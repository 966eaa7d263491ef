// FUSE operations on the files that the mount shows and nobody writes: OPEN asks the tree once what
// a file is, and makes an OpenFile of that kind, which answers what comes after:
//
//     TextFile       its text                     read at once
//     LocalFile      the image                    by the kernel (passthrough), or by the daemon
//     StreamingFile  the image, as it is filled   a READ waits until its range is here
//     RemoteFile     the bucket                   a READ makes the chunks that it needs
//     DeltaFile      is built first; then as a LocalFile
//
// Every function answers its request.  Threads: as operations.hpp.
#pragma once

#include "fs/fuse/server.hpp"

namespace weightfs::fs {

/// Notes for the pins that somebody opens a file, and what that means for them.
Passes::Opened note_open(fuse_req_t req, Inode inode);

/// Requires: no inode of staging.
void open_file(fuse_req_t req, Inode inode, const fuse_file_info& info);
void read_file(fuse_req_t req, std::uint64_t handle, FileRange range);
void lseek_file(fuse_req_t req, std::uint64_t handle, off_t offset, int whence);
void release_file(fuse_req_t req, std::uint64_t handle);

}  // namespace weightfs::fs
