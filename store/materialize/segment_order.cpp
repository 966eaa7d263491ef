#include "store/materialize/segment_order.hpp"

#include <algorithm>

namespace weightfs {

std::vector<SegmentPlace> order_segments(std::span<const std::size_t> segments_of_files,
                                         std::size_t lanes) {
  std::vector<SegmentPlace> open, ordered;  // open: the next ones of the files whose turn it is
  std::size_t next_file = 0;
  const auto open_next = [&] {
    while (next_file < segments_of_files.size() && segments_of_files[next_file] == 0) next_file++;
    if (next_file == segments_of_files.size()) return false;
    open.push_back({next_file++, 0});
    return true;
  };
  while (open.size() < lanes && open_next()) {
  }
  while (!open.empty()) {
    std::vector<SegmentPlace> turn;
    turn.swap(open);
    for (SegmentPlace place : turn) {
      ordered.push_back(place);
      if (++place.segment < segments_of_files[place.file]) {
        open.push_back(place);
      } else {
        open_next();
      }
    }
  }
  return ordered;
}

}  // namespace weightfs
