// Config file: a TOML file of options.  The only user of toml++.
//
//     # comment
//     store = "/ssd/weightfs"            top: for every command that has the option
//     [mount]                            one table for each command
//     poll = 0.5
//     include = ["*.bin", '*.pt']        strings, numbers, booleans, and arrays of them
//
// Dates, nested tables and non-decimal numbers are refused, with the line: no option needs them.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

struct ConfigEntry {
  std::string table;  // "": top level
  std::string key;
  std::vector<std::string> values;  // an array's; otherwise one
  bool is_array = false;
};

/// Throws Error: invalid, naming `what` and the line.
std::vector<ConfigEntry> parse_config(std::string_view text, std::string_view what);

}  // namespace weightfs::fs
