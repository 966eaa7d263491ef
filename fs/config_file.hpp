// Config file: the part of TOML that a configuration of options needs.
//
//     # comment
//     store = "/ssd/weightfs"            top: for every command that has the option
//     [mount]                            one table for each command
//     poll = 0.5
//     include = ["*.bin", '*.pt']        strings, numbers, booleans, and arrays of them
//
// Anything else of TOML (dates, nested and inline tables, dotted keys, multi-line strings) is
// refused, with the line.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

struct ConfigEntry {
  std::string table;  // "" at the top
  std::string key;
  std::vector<std::string> values;  // of an array; one of anything else
  bool is_array = false;
};

/// Throws Error: invalid, naming `what` and the line.
std::vector<ConfigEntry> parse_config(std::string_view text, std::string_view what);

}  // namespace weightfs::fs
