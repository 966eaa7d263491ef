// Values: how the command line, the environment and the configuration file spell numbers, sizes,
// times and switches.
//
// Every function takes the whole text or throws Error invalid, saying what would have been right;
// the caller puts the name of the option in front.
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

/// A decimal number in the range, ends included.
std::uint64_t parse_number(std::string_view text, NumberRange range);

/// Permission bits to take away, octal: "022".
std::uint32_t parse_umask(std::string_view text);

/// Permissions of a directory, octal, with the bits for the set-group and the sticky bit.
std::uint32_t parse_mode(std::string_view text);

/// Bytes: "1073741824", "10GiB" or "10G" (1024s), "500MB" (1000s); units K M G T P.
std::uint64_t parse_size(std::string_view text);

/// Seconds with fractions, from 0.01 to a day: "0.5".
std::chrono::milliseconds parse_seconds(std::string_view text);

/// A name or a URL: not empty, without control characters and spaces at its ends.
std::string parse_word(std::string_view text);

/// "true", "yes", "on", "1", or their opposites.
bool parse_switch(std::string_view text);

/// "KEY=VALUE" with a key; the value may be empty and may hold more '='.
std::pair<std::string_view, std::string_view> parse_pair(std::string_view text);

}  // namespace weightfs::fs
