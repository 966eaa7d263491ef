// Status lines: what .weightfs/status says, in words.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "store/base/json.hpp"

namespace weightfs::fs {

/// All of it, for `weightfs status MOUNTPOINT`.  `width`: see TextTable::text().
std::string status_lines(const Json& status, std::size_t width = 0);

/// What is wrong, a line each with its end, for the list of mounts: "/mnt/w: step-42: ...".  ""
/// if all is well.
std::string problem_lines(const Json& status);

/// One of writer.queue: "step-42: uploading 3.1 MiB of 12 MiB".
std::string hand_over_text(const Json& hand_over);

/// One of "hooks": "vllm http://127.0.0.1:8000: current, version 42".
std::string hook_text(const Json& hook);

/// Names of what was handed over and is no version: an array, empty if the status does not say.
Json queued_names(const Json& status);

/// "2 hand-overs wait in the store: step-42, step-43; ..." and what does not go on by itself, a
/// line each, the last without its end; "" if there are none.
std::string queued_text(const Json& status);

}  // namespace weightfs::fs
