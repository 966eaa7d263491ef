// UTC text: a time, as messages say it.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs {

/// "2026-11-25 13:30:00 UTC".  `time`: seconds since 1970.
std::string utc_text(std::int64_t time);

}  // namespace weightfs
