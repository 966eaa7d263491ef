// Status lines: .weightfs/status as text.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "store/base/json.hpp"

namespace weightfs::fs {

/// The whole status, for `weightfs status MOUNTPOINT`.  `width`: see TextTable::text().
std::string status_lines(const Json& status, std::size_t width = 0);

/// The problems, one line each with its newline, for the list of mounts: "/mnt/w: step-42: ..."; ""
/// if all is well.
std::string problem_lines(const Json& status);

/// "degraded: step-42: the bucket does not answer", as the mount's .weightfs/health; an older
/// daemon has only problems.
std::string health_text(const Json& status);

/// Its first word: "healthy", "degraded" or "failed".
std::string health_word(const Json& status);

/// An entry of writer.queue: "step-42: uploading 3.1 MiB of 12 MiB".
std::string hand_over_text(const Json& hand_over);

/// An entry of "hooks": "vllm http://127.0.0.1:8000: current, version 42".
std::string hook_text(const Json& hook);

/// Names of hand-overs that are not yet versions: an array, empty if the status has none.
Json queued_names(const Json& status);

/// "2 hand-overs wait in the store: step-42, step-43; ..." and those that need help, one line each,
/// the last without a newline; "" if there are none.
std::string queued_text(const Json& status);

}  // namespace weightfs::fs
