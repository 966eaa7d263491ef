// Config file: a TOML file of options.  Home of toml++.
//
//     # comment
//     store = "/ssd/weightfs"            top: for every command that has the option
//     [mount]                            one table for each command
//     poll = 0.5
//     include = ["*.bin", '*.pt']        strings, numbers, booleans, and arrays of them
//
// No option needs dates, tables in tables, or numbers that are not decimal: they are refused, with
// the line.
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
