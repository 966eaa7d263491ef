// Segment order: in which order threads take the segments of files, so that as far as there are
// several files they write to different ones: the kernel locks a file that is written to.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace weightfs {

struct SegmentPlace {
  std::size_t file = 0, segment = 0;

  bool operator==(const SegmentPlace&) const = default;
};

/// All segments, `lanes` files in turns; a file that is done makes room for the next one.  So of
/// `lanes` that follow each other no two are of one file, as long as so many files are left.  Those
/// of a file stay in their order.  Requires: lanes > 0.
std::vector<SegmentPlace> order_segments(std::span<const std::size_t> segments_of_files,
                                         std::size_t lanes);

}  // namespace weightfs
