// Parse values: numbers, sizes, times and switches, as the command line, the environment and the
// configuration file spell them.
//
// Every function takes the whole text or throws Error invalid, which says what was expected; the
// caller puts the name of the option in front.
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace weightfs::fs {

struct NumberRange {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

/// A decimal number in the range, bounds included.
std::uint64_t parse_number(std::string_view text, NumberRange range);

/// Permission bits to remove, octal: "022".
std::uint32_t parse_umask(std::string_view text);

/// Permissions of a directory, octal, with the setgid and the sticky bit.
std::uint32_t parse_mode(std::string_view text);

/// Bytes: "1073741824", "10GiB" or "10G" (powers of 1024), "500MB" (powers of 1000); units K M G T
/// P.
std::uint64_t parse_size(std::string_view text);

/// Seconds, possibly with a fraction, from 0.01 to a day: "0.5".
std::chrono::milliseconds parse_seconds(std::string_view text);

/// A name or a URL: not empty, without control characters, without spaces at either end.
std::string parse_word(std::string_view text);

/// "true", "yes", "on", "1", or their opposites.
bool parse_switch(std::string_view text);

/// "KEY=VALUE" with a non-empty key; the value may be empty and may contain '='.
std::pair<std::string_view, std::string_view> parse_pair(std::string_view text);

}  // namespace weightfs::fs
