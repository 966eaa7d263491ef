// Cache advice: explains what the page cache, the memory and the serving mode mean for engines.
// `.weightfs/advice`, `status` and `doctor` all take their text from here.
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

/// "page cache" first, then "memory", a finding for each engine that may need an option, and
/// "images": which --images suits the host.
/// `mode`: the serving mode, as in ServingState.
std::vector<Finding> advise(const CacheState& cache, std::string_view mode);

/// The text of .weightfs/advice: one or more lines for each finding.
std::string advice_text(const std::vector<Finding>& findings);

/// The field "cache" of .weightfs/status.
Json cache_json(const CacheState& cache, std::string_view mode);

/// The findings in "cache" of a status; empty if there are none (the daemon is older).  Throws
/// Error: corrupt.
std::vector<Finding> findings_of(const Json& status);

/// For the host or container where `doctor` runs, which may be the engine's: a warning if the
/// version in the status fits into memory where the daemon runs, but not here.
std::vector<Finding> advise_here(const Json& status, const std::optional<MemoryRoom>& room);

}  // namespace weightfs::fs
