// Bar text: a bar of characters, and lines that fit a terminal.
//
// Threads: pure functions, but shows_utf8(), which reads the environment.
#pragma once

#include <cstddef>
#include <string>

namespace weightfs::fs {

/// Whether the locale's characters are UTF-8: LC_ALL, else LC_CTYPE, else LANG.
bool shows_utf8();

/// A bar of `share` of `columns`, filled up with spaces: blocks of eighths, or '#' and halves as
/// '-' without UTF-8.  What is not 0 has at least a trace; above 1 it ends with '+', as it is cut.
std::string bar_text(double share, std::size_t columns, bool is_utf8);

/// `line` cut to `width` characters of UTF-8, without spaces at its end, as a line.
std::string cut_line(const std::string& line, std::size_t width);

}  // namespace weightfs::fs
