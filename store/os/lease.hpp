// Lease: asks the kernel who has a file open.  It grants a write lease only if no other process has
// the file open or mapped, including through the mount's passthrough, and a read lease only if none
// can write.  The lease is given back at once.
//
// Requires: the process ignores SIGIO, which an open(2) during the probe sends it.
//
// Threads: functions without state.
#pragma once

#include <filesystem>
#include <span>

#include "store/os/refused_leases.hpp"

namespace weightfs {

enum class Writers {
  none,
  some,    // the file is open for writing, or mapped from such a descriptor
  unknown  // errno says why: EACCES, the file is another user's, and this process has no CAP_LEASE;
           // EINVAL, EOPNOTSUPP, a file system without leases, or one that other hosts write to
};

/// Whether a process can write to a file now.  `fd`: open for reading only.
Writers find_writers(int fd);

/// True if no process has a file open or mapped that would go with these directories, apart from
/// O_PATH descriptors: F_SETLEASE(F_WRLCK) is granted on each (docs/architecture/following.md, "Who
/// still reads").  A file with another name elsewhere is not checked, since it stays.  Of a file of
/// another user it is asked in that user's name where the process has no CAP_LEASE.  False where
/// the kernel cannot tell (a file system without leases, neither CAP_LEASE nor CAP_SETUID).  The
/// answer is valid only for the moment: hide the files first.
///
/// `refused_leases`: told of each file that was asked for; may be nullptr.
/// Requires: the process ignores SIGIO, which an open(2) during the probe sends it.
bool nobody_reads(std::span<const std::filesystem::path> directories,
                  RefusedLeases* refused_leases = nullptr);
bool nobody_reads(const std::filesystem::path& directory, RefusedLeases* refused_leases = nullptr);

/// The same for one file, wherever its names are.
bool nobody_reads_file(const std::filesystem::path& path, RefusedLeases* refused_leases = nullptr);

/// True if nobody has the file open for writing, mapped shared and writable, or mapped privately
/// from a writable descriptor: F_SETLEASE(F_RDLCK) is granted.  Mere readers do not matter.  False
/// where the kernel cannot tell.  The answer is valid only for the moment: forbid writable opens
/// first.
///
/// Requires: the process ignores SIGIO, and has no writable descriptor of the file itself.
bool nobody_writes(const std::filesystem::path& file);

}  // namespace weightfs
