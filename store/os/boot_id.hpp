// Boot id: tells one run of the machine from the next.  What no sync has brought to the disk may be
// lost when it changes.
//
// Threads: a pure function.
#pragma once

#include <optional>
#include <string>

namespace weightfs {

/// nullopt where the system does not say it.
std::optional<std::string> find_boot_id();

/// Where it is not known, each call takes the machine for restarted: for those who would rather do
/// something again than rely on bytes that may be lost.  Who would blame files that somebody is
/// writing takes find_boot_id(), and does nothing where it is not known.
std::string boot_id();

}  // namespace weightfs
