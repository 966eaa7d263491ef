// Timing text: how long versions and hand-overs took (store/timing/version_timing.hpp), for people.
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "store/timing/version_timing.hpp"

namespace weightfs::fs {

/// At most 5 characters up to 99 hours: "0.4ms", "512ms", "12.3s", "12m", "26h".
std::string duration_text(std::chrono::nanoseconds time);

/// "512ms after its manifest was seen (build 480ms, flip 29ms)": phases that matter.
std::string shown_text(const VersionTiming& timing);

/// "version 41 + 1 delta: fetch 12.3 MiB in 212ms; stall 0.2ms, decode 310ms, write 201ms".
std::string build_text(const VersionTiming& timing);

/// "512ms (code 12ms, commit 480ms)", from the hand-over on.
std::string shown_text(const HandOverTiming& timing);

/// "step-42: 512 MiB, 500 MiB of it coded early; 6 MiB uploaded".
std::string coded_text(const HandOverTiming& timing);

/// Tables of all records, newest first; under each row a line with the details.  At most 100
/// columns wide, unless names are long or something failed.  A BUILD with a "+" came after TOTAL.
std::string timing_tables(const std::vector<TimingRecord>& records);

}  // namespace weightfs::fs
