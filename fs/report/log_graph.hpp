// Log graph: a line for each version, with bars of what was uploaded and of what changed.
//
// Threads: a pure function.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "fs/report/version_point.hpp"

namespace weightfs::fs {

/// No line is wider than `columns`; bars that do not fit are left out, then lines are cut.
/// `is_utf8`: see bar_text().  There is no colour.
std::string log_graph(std::span<const VersionPoint> versions, std::size_t columns, bool is_utf8);

}  // namespace weightfs::fs
