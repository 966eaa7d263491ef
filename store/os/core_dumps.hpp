// CoreDumps: secrets stay out of core files.
//
// Keys pass through many hands: the environment's pages, libcurl's buffers, JSON, the stack.  So no
// page is marked: the process tells the kernel to leave its memory out of core files as a whole
// (/proc/self/coredump_filter, which gcore and systemd-coredump follow, too).  What is left of a
// core file are registers, enough to see where it crashed.
#pragma once

namespace weightfs {

/// For the whole process and its children, from now on.  Where /proc is not writable there are no
/// core files at all (RLIMIT_CORE); where that fails too it logs a warning.  Threads: any.
void keep_memory_out_of_core_dumps();

}  // namespace weightfs
