// Top frame: what `weightfs top` shows of the mounts of this host, from two readings of their
// status.
//
// Threads: a pure function.  Included by .cpp files only, as store/base/json.hpp.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "store/base/json.hpp"

namespace weightfs::fs {

/// The status of all mounts, at one moment.
struct TopReading {
  std::vector<Json> mounts;  // as `status --json`
  double seconds = 0;        // since some moment
};

/// A table; fields that a daemon does not have are "-", and so are rates of a daemon that was not
/// there before.  `columns`, `rows`: no line is wider, there are no more; 0: no limit.
std::string top_frame(const TopReading& now, const TopReading& before, std::size_t columns,
                      std::size_t rows);

}  // namespace weightfs::fs
