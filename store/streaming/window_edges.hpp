// WindowEdges: the ends of windows where a chunk lies across that was not compared with its hash
// yet.  SnapshotWindow makes a window without its neighbours; such a chunk needs both.
//
// End e lies between the windows e - 1 and e.
//
// Threads: none of its own; one caller at a time.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace weightfs {

class WindowEdges {
 public:
  /// At most two windows.
  struct Neighbours {
    std::array<std::size_t, 2> windows{};
    std::size_t count = 0;

    [[nodiscard]] const std::size_t* begin() const { return windows.data(); }
    [[nodiscard]] const std::size_t* end() const { return windows.data() + count; }
  };

  /// All ends are closed.
  explicit WindowEdges(std::size_t window_count) : open_(window_count + 1), alone_(window_count) {}

  void open(std::size_t end) { open_[end] = true; }
  void close(std::size_t end) { open_[end] = false; }
  [[nodiscard]] bool is_open(std::size_t window) const {
    return open_[window] || open_[window + 1];
  }
  /// The neighbours across open ends.  Takes no memory: it is asked where nothing may fail.
  [[nodiscard]] Neighbours neighbours(std::size_t window) const {
    Neighbours found;
    if (open_[window]) found.windows[found.count++] = window - 1;
    if (open_[window + 1]) found.windows[found.count++] = window + 1;
    return found;
  }

  /// The window is to be made without its neighbours.
  void set_alone(std::size_t window) { alone_[window] = true; }
  [[nodiscard]] bool is_alone(std::size_t window) const { return alone_[window]; }

 private:
  std::vector<bool> open_, alone_;
};

}  // namespace weightfs
