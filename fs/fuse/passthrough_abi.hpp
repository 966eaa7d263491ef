// Passthrough ABI: the part of the kernel's FUSE protocol (7.40) that is missing from Debian 12's
// headers.  Layouts and numbers are kernel ABI: include/uapi/linux/fuse.h.
#pragma once

#include <sys/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace weightfs::fs::abi {

/// Begins every message to the daemon.
struct InHeader {
  std::uint32_t len, opcode;
  std::uint64_t unique, nodeid;
  std::uint32_t uid, gid, pid, padding;
};
static_assert(sizeof(InHeader) == 40);

/// Begins every message from the daemon. error: 0 or -errno.
struct OutHeader {
  std::uint32_t len;
  std::int32_t error;
  std::uint64_t unique;
};
static_assert(sizeof(OutHeader) == 16);

/// The body of the INIT request, as far as needed here.
struct InitIn {
  std::uint32_t major, minor, max_readahead, flags, flags2;
};

/// The body of the INIT reply.
struct InitOut {
  std::uint32_t major, minor, max_readahead, flags;
  std::uint16_t max_background, congestion_threshold;
  std::uint32_t max_write, time_gran;
  std::uint16_t max_pages, map_alignment;
  std::uint32_t flags2, max_stack_depth, unused[6];
};
static_assert(sizeof(InitOut) == 64);

inline constexpr std::uint32_t kOpcodeInit = 26;
inline constexpr std::uint32_t kInitExt = 1u << 30;           // flags: "flags2 is valid"
inline constexpr std::uint32_t kFlags2Passthrough = 1u << 5;  // bit 37 of the two words

/// The body of the OPEN reply.
struct OpenOut {
  std::uint64_t fh;
  std::uint32_t open_flags;
  std::int32_t backing_id;  // "padding" before 7.40
};
static_assert(sizeof(OpenOut) == 16);

inline constexpr std::uint32_t kOpenPassthrough = 1u << 7;

/// In the reply to CREATE this many bytes (fuse_entry_out) precede the OpenOut.
inline constexpr std::size_t kEntryOutBytes = 128;

/// The argument of kBackingOpen; flags and padding must be 0.
struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};

inline constexpr unsigned long kBackingOpen = _IOW(229, 1, BackingMap);  // on /dev/fuse
inline constexpr unsigned long kBackingClose = _IOW(229, 2, std::uint32_t);

}  // namespace weightfs::fs::abi
