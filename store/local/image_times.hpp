// Image times: what the modification time of an image file says of it.
//
//     whole seconds   sealed: all of it was written, and nobody has written to it since
//     kLostMark       the disk did not take it (store/local/sync_images.hpp)
//     any other       it is being written, or was written to later
//
// Threads: pure functions.
#pragma once

#include <sys/stat.h>

namespace weightfs {

inline constexpr long kLostMark = 1;  // ns beyond a whole second

inline bool is_sealed(const struct stat& attributes) noexcept {
  return attributes.st_mtim.tv_nsec == 0;
}

inline bool is_marked_lost(const struct stat& attributes) noexcept {
  return attributes.st_mtim.tv_nsec == kLostMark;
}

/// Whether a file that had all its bytes once may have others now.  A mark says nothing of that.
inline bool was_written_to(const struct stat& attributes) noexcept {
  return !is_sealed(attributes) && !is_marked_lost(attributes);
}

}  // namespace weightfs
