// Priority: of threads whose work may wait.
//
// Threads: of the calling thread only.
#pragma once

namespace weightfs {

/// After everybody else, for the processor and for the disk.
void take_lowest_priority() noexcept;

}  // namespace weightfs
