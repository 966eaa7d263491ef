// CoreDumps: secrets stay out of core files.
//
// Keys are copied to many places: the environment's pages, libcurl's buffers, JSON, the stack.  So
// no single pages are marked; instead the kernel is told to leave all memory of the process out of
// core files (/proc/self/coredump_filter, which gcore and systemd-coredump follow, too).  What
// remains in a core file are the registers, enough to see where it crashed.
#pragma once

namespace weightfs {

/// For the whole process and its children, from now on.  Where /proc is not writable there are no
/// core files at all (RLIMIT_CORE); where that fails too it logs a warning.  Threads: any.
void keep_memory_out_of_core_dumps();

}  // namespace weightfs
