// Passthrough: backing files for FUSE.  libfuse >= 3.17 puts what is needed into the INIT and OPEN
// replies; for older ones (Debian 12: 3.14) the replies are patched on their way to the kernel.
// Which way is chosen when compiling, in session.cpp, operations.cpp and reply.cpp.
//
// A backing file is registered by an O_PATH descriptor: an id made from a readable one would count
// as a reader for ever, and nobody_reads() would always say no.
//
// Source: Linux fs/fuse/passthrough.c, include/uapi/linux/fuse.h (protocol 7.40);
// https://docs.kernel.org/filesystems/fuse-passthrough.html
//
// Threads: all calls may run in parallel.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace weightfs::fs {

/// Whether passthrough can work here: tried once on the connection, with a file of the store.
struct PassthroughState {
  bool available = false;
  std::string why_not;  // in words, for status: "kernel 6.1 has no FUSE passthrough (6.9 or newer)"
};

/// What can be told without a connection: the release of the kernel, and the capability.
/// `available` then means that a mount will try.
PassthroughState guess_passthrough();

/// Bytes of a FUSE INIT request.
using InitRequest = std::span<const std::byte>;

/// True if the kernel that sent this INIT knows passthrough.
bool offers_passthrough(InitRequest init) noexcept;

/// Registers a file of `store` on the connection, after INIT was answered with passthrough on.
PassthroughState try_passthrough(int fuse_fd, InitRequest init, const std::filesystem::path& store);

/// Registers a file on the connection `fuse_fd`.
/// Returns: an id > 0, or -errno.
std::int32_t register_backing(int fuse_fd, const std::filesystem::path& image) noexcept;
void unregister_backing(int fuse_fd, std::int32_t backing_id) noexcept;

/// Patches the reply of libfuse < 3.17 to INIT: backing files on plain file systems are wanted.
void patch_init_reply(std::span<const iovec> reply) noexcept;

/// Patches its reply to OPEN or CREATE: this inode is served by that backing file.
void patch_open_reply(std::span<const iovec> reply, std::int32_t backing_id) noexcept;

}  // namespace weightfs::fs
