// Work threads: how many threads suit this host, where nobody says another number.
//
// A container of four processors on a host of 192 has the host's cores and its own memory: threads
// by the cores alone would end it (`OOMKilled`), after every restart.
//
// Threads: pure functions.
#pragma once

#include <filesystem>

namespace weightfs {

/// The smallest of the cores that this process may use, the CPU quota of its cgroups, and what an
/// eighth of the memory that it may use has room for; at least 1.  As first read: none of them
/// changes often.
unsigned work_threads();

/// The same, with this many cores, and as it is now.  `root`: as find_memory_limit().
unsigned find_work_threads(unsigned cores, const std::filesystem::path& root = "/");

}  // namespace weightfs
