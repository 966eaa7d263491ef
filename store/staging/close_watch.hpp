// Close watch: finds out when nobody can write to a staged file any more.
//
// No event says so.  The RELEASE of the last writer reaches the daemon before the kernel has let go
// of the backing file; a mapping outlives it; a rename after the close tells of a name only.  So
// events say which file to ask about, and the kernel answers: nobody_writes().
//
//     note, inotify -> 20 ms later asked, and after 1, 2, 4 ... 500 ms -> told, or forgotten until
//                                                                         the next event
//
// The 20 ms are for who copies: the times are set after the close, and the name is given last.
//
// inotify's IN_CLOSE_WRITE on the directory of the backing files tells of every descriptor and
// mapping that could write, also of those that the kernel serves past the daemon.  After an
// overflow all files are asked about.  Where inotify is not to be had the notes are all there is.
//
// What is told is about that moment, and may be told twice: whoever relies on it compares the
// file's generation, and a hand-over asks again.
//
// Threads: all calls may run in parallel and return at once.  One thread of its own, which asks
// and tells.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "store/os/lease.hpp"
#include "store/staging/types.hpp"

namespace weightfs {

struct CloseWatchOptions {
  std::filesystem::path directory;  // of the backing files, which are named by their ids
  std::function<std::vector<StagingId>()> all;  // every file there is
  /// Nobody can write to the file now.  Called by the thread; must not throw.
  std::function<void(StagingId)> closed;
};

class CloseWatch {
 public:
  explicit CloseWatch(CloseWatchOptions options);
  ~CloseWatch();  // ends the thread

  /// Asks about a file, from the start if it is being asked about.
  void note(StagingId file) noexcept;

  /// Asks about all files.
  void note_all() noexcept;

  /// Files that are being asked about.  One that was noted counts until it is told or forgotten.
  [[nodiscard]] std::size_t pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
