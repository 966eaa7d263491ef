// Completions: the command table as a script for a shell.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace weightfs::fs {

/// `shell`: bash, zsh or fish.  Throws Error: invalid.
std::string completion_script(std::string_view shell);

}  // namespace weightfs::fs
