// Pass findings: the warnings of `status` and `doctor` about loaders that passes cannot keep
// together.
//
// Threads: pure functions.
#pragma once

#include <vector>

#include "fs/base/finding.hpp"
#include "store/base/json.hpp"

namespace weightfs::fs {

/// A warning about callers that the daemon cannot see, and one for each uid that gets no more
/// passes.
std::vector<Finding> pass_findings(const Json& status);

}  // namespace weightfs::fs
