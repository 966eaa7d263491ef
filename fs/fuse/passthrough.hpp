// Passthrough: backing files for FUSE. libfuse >= 3.17 supports them in the INIT and OPEN replies;
// with older releases (Debian 12: 3.14) the replies are patched on their way to the kernel.  The
// choice is made at compile time, in session.cpp, operations.cpp and reply.cpp.
//
// A backing file is registered through an O_PATH descriptor: with a readable one the id would count
// as a reader for ever, and nobody_reads() would always return false.
//
// Source: Linux fs/fuse/passthrough.c, include/uapi/linux/fuse.h (protocol 7.40);
//  https://docs.kernel.org/filesystems/fuse-passthrough.html
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

/// Whether passthrough works here; tested once on the connection, with a file in the store.
struct PassthroughState {
  bool available = false;
  std::string why_not;  // for status: "kernel 6.1 has no FUSE passthrough (6.9 or newer)"
};

/// What is known without a connection: the kernel's release and the capability.  `available` then
/// means that a mount will try.
PassthroughState guess_passthrough();

/// The bytes of a FUSE INIT request.
using InitRequest = std::span<const std::byte>;

/// Whether the kernel that sent this INIT supports passthrough.
bool offers_passthrough(InitRequest init) noexcept;

/// Registers a file in `store` on the connection, after INIT was answered with passthrough on.
PassthroughState try_passthrough(int fuse_fd, InitRequest init, const std::filesystem::path& store);

/// Registers a file on the connection `fuse_fd`.
/// Returns: an id > 0, or -errno.
std::int32_t register_backing(int fuse_fd, const std::filesystem::path& image) noexcept;
void unregister_backing(int fuse_fd, std::int32_t backing_id) noexcept;

/// Patches the INIT reply of libfuse < 3.17 to enable backing files on plain file systems.
void patch_init_reply(std::span<const iovec> reply) noexcept;

/// Patches its reply to OPEN or CREATE: the backing file serves this inode.
void patch_open_reply(std::span<const iovec> reply, std::int32_t backing_id) noexcept;

}  // namespace weightfs::fs
