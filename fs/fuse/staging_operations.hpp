// FUSE operations on what trainers write: thin adapters between libfuse, Staging and PublishQueue.
// operations.cpp hands over each operation whose inode, or parent, is one of staging's.
//
// Names directly below the two roots are never cached (a rename to publish/ and the end of a
// publish change what is under them); deeper names for a second, attributes too, but not those of
// files that the kernel serves past the daemon.  What may take time (fsync, fallocate, truncate, a
// rename into publish/, reads and writes that the daemon serves) is parked.
//
// Every function answers its request.  Threads: as operations.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "fs/fuse/server.hpp"

namespace weightfs::fs::staged {

/// As the mount shows them.  Throws PosixError.
struct stat attributes(const Server& server, StagingId id);

/// Text of .weightfs/last_error.
std::string last_error(const Server& server);

// ---- names ----

void lookup(fuse_req_t req, StagingId parent, const char* name);
void getattr(fuse_req_t req, StagingId id);
void readlink(fuse_req_t req, StagingId id);
void readdir(fuse_req_t req, StagingId id, std::size_t size, std::uint64_t offset);
void mknod(fuse_req_t req, StagingId parent, const char* name, mode_t mode, dev_t device);
void mkdir(fuse_req_t req, StagingId parent, const char* name, mode_t mode);
void symlink(fuse_req_t req, StagingId parent, const char* name, const char* target);
void unlink(fuse_req_t req, StagingId parent, const char* name);
void rmdir(fuse_req_t req, StagingId parent, const char* name);
void rename(fuse_req_t req, StagingId parent, const char* name, StagingId new_parent,
            const char* new_name, unsigned flags);
void refuse_link(fuse_req_t req, StagingId parent);
void refuse_xattr(fuse_req_t req, StagingId id);

// ---- files ----

void create(fuse_req_t req, StagingId parent, const char* name, mode_t mode, fuse_file_info* info);
void open(fuse_req_t req, StagingId id, fuse_file_info* info);
void release(fuse_req_t req, StagingId id, fuse_file_info* info);
void setattr(fuse_req_t req, StagingId id, struct stat* attributes, int which,
             fuse_file_info* info);
void read(fuse_req_t req, StagingId id, std::uint64_t offset_bytes, std::size_t size_bytes);
void write(fuse_req_t req, StagingId id, const char* data, std::size_t size_bytes, off_t offset,
           fuse_file_info* info);
void lseek(fuse_req_t req, StagingId id, off_t offset, int whence);
void fallocate(fuse_req_t req, StagingId id, int mode, off_t offset, off_t size,
               fuse_file_info* info);
void fsync(fuse_req_t req, StagingId id, int data_only, fuse_file_info* info);
void fsyncdir(fuse_req_t req, StagingId id, int data_only, fuse_file_info* info);

}  // namespace weightfs::fs::staged
