// Holes: the ranges of a file that its file system has no bytes for.
//
// Threads: pure functions.
#pragma once

namespace weightfs {

/// Whether the file system of this file tells of holes.  Others may not know them; or, to tell of
/// them, write out what is dirty (ZFS).
bool tells_of_holes(int fd) noexcept;

/// Whether the file is known to have one.
bool has_hole(int fd) noexcept;

}  // namespace weightfs
