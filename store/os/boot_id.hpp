// Boot id: tells one run of the machine from the next.  What no sync has brought to the disk may be
// lost when it changes.
//
// Threads: a pure function.
#pragma once

#include <string>

namespace weightfs {

/// Where it is not known, each call takes the machine for restarted.
std::string boot_id();

}  // namespace weightfs
