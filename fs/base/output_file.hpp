// Output file: what a command writes where its user says.
//
// Threads: pure functions.
#pragma once

#include <filesystem>
#include <string_view>

namespace weightfs::fs {

/// Absent, or a regular file: it is replaced as a whole (write_file); where `path` is a link, what
/// it leads to is.  Anything else, such as /dev/stdout or a FIFO, is written to, and stays.
/// Throws Error: see throw_errno.
void write_output(const std::filesystem::path& path, std::string_view bytes, unsigned mode = 0644);

}  // namespace weightfs::fs
