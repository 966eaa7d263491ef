// Passthrough: backing files for FUSE, on libfuse 3.14 by patching the INIT and OPEN replies on
// their way to the kernel, on libfuse >= 3.17 by its own calls (chosen when compiling).
//
// A backing file is registered by an O_PATH descriptor: an id made from a readable one would count
// as a reader for ever, and nobody_reads() would always say no.
//
// Source: Linux fs/fuse/passthrough.c, include/uapi/linux/fuse.h (protocol 7.40);
// https://docs.kernel.org/filesystems/fuse-passthrough.html
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace weightfs::fs {

/// Whether passthrough can work here: tried once on the connection, with a file of the store.
struct PassthroughState {
  bool available = false;
  std::string why_not;  // in words, for status: "kernel 6.1 has no FUSE passthrough (6.9 or newer)"
};

/// Registers a file on the connection `fuse_fd`.
/// Returns: an id > 0, or -errno.
std::int32_t register_backing(int fuse_fd, const std::filesystem::path& image) noexcept;
void unregister_backing(int fuse_fd, std::int32_t backing_id) noexcept;

}  // namespace weightfs::fs
