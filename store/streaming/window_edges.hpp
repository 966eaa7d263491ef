// WindowEdges: the ends of windows where a chunk lies across that was not compared with its hash
// yet.  SnapshotWindow makes a window without its neighbours; such a chunk needs both.
//
// End e lies between the windows e - 1 and e.
//
// Threads: none of its own; one caller at a time.
#pragma once

#include <cstddef>
#include <vector>

namespace weightfs {

class WindowEdges {
 public:
  /// All ends are closed.
  explicit WindowEdges(std::size_t window_count) : open_(window_count + 1), alone_(window_count) {}

  void open(std::size_t end) { open_[end] = true; }
  void close(std::size_t end) { open_[end] = false; }
  [[nodiscard]] bool is_open(std::size_t window) const {
    return open_[window] || open_[window + 1];
  }
  /// The neighbours across open ends.
  [[nodiscard]] std::vector<std::size_t> neighbours(std::size_t window) const {
    std::vector<std::size_t> found;
    if (open_[window]) found.push_back(window - 1);
    if (open_[window + 1]) found.push_back(window + 1);
    return found;
  }

  /// The window is to be made without its neighbours.
  void set_alone(std::size_t window) { alone_[window] = true; }
  [[nodiscard]] bool is_alone(std::size_t window) const { return alone_[window]; }

 private:
  std::vector<bool> open_, alone_;
};

}  // namespace weightfs
