// Close watch: finds out when no process can write to a staged file any more.
//
// No event reports that.  The RELEASE of the last writer reaches the daemon before the kernel has
// closed the backing file; a mapping outlives it; a rename after the close only concerns the name.
// So events say which file to check, and the kernel gives the answer: nobody_writes().  It does not
// know yet who is about to open the file, and has got the daemon's answer; that the daemon knows.
//
//     note, inotify -> checked after 20 ms, and again after 1, 2, 4 ... 500 ms
//                   -> reported, or dropped until the next event
//
// At the first check it is also reported that somebody can write to it: so whoever opens a file for
// that may note it too.
//
// The 20 ms are for copying tools, which set the times after the close, and the name last.
//
// inotify's IN_CLOSE_WRITE on the directory of the backing files reports every descriptor and
// mapping that could write, including those that the kernel serves without the daemon.  After an
// overflow all files are checked.  Without inotify, calls of note() are the only events.
//
// A report describes that moment, and may come twice: whoever relies on it compares the file's
// generation, and a hand-over checks again.
//
// Threads: all calls may run in parallel and return at once.  Its own thread checks the files and
// calls `closed`.
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
  std::filesystem::path directory;              // of the backing files, which are named by id
  std::function<std::vector<StagingId>()> all;  // all files
  /// No process can write to the file now.  Called by the thread; must not throw.
  std::function<void(StagingId)> closed;
  /// Somebody can.  As above; may be empty.
  std::function<void(StagingId)> written = {};
  /// Whether the daemon knows somebody who can; note() is called when he no longer can.  As above.
  std::function<bool(StagingId)> is_open = {};
};

class CloseWatch {
 public:
  explicit CloseWatch(CloseWatchOptions options);
  ~CloseWatch();  // ends the thread

  /// Begins to check a file, or starts over if it is already being checked.
  void note(StagingId file) noexcept;

  /// Begins to check all files.
  void note_all() noexcept;

  /// Files being checked.  A noted file counts until it is reported or dropped.
  [[nodiscard]] std::size_t pending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weightfs
