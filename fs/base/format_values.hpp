// Format values: times and shares for people.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs::fs {

/// "2026-01-31 12:00:00Z".
std::string time_text(std::int64_t seconds);

/// "1.28 %"; "-" if there is nothing to compare.
std::string share_text(std::uint64_t part, std::uint64_t whole);

}  // namespace weightfs::fs
