// Cache advice: what the page cache, the memory and the way of serving mean for engines, in words.
// The one home of what `.weightfs/advice`, `status` and `doctor` say about it.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fs/base/finding.hpp"
#include "fs/cache/warmer.hpp"
#include "store/base/json.hpp"

namespace weightfs::fs {

/// "page cache" first, then "memory", then a finding for each engine that needs an option in some
/// case.  `mode`: of serving, as ServingState has it.
std::vector<Finding> advise(const CacheState& cache, std::string_view mode);

/// The text of .weightfs/advice: a line or more for each finding.
std::string advice_text(const std::vector<Finding>& findings);

/// "cache" of .weightfs/status.
Json cache_json(const CacheState& cache, std::string_view mode);

/// The findings in "cache" of a status; empty if it has none (an older daemon's).
/// Throws Error: corrupt.
std::vector<Finding> findings_of(const Json& status);

/// Said where `doctor` runs, which may be the engine's container: a warning if the version of a
/// status does not fit here although it does where the daemon runs.
std::vector<Finding> advise_here(const Json& status, const std::optional<MemoryRoom>& room);

}  // namespace weightfs::fs
