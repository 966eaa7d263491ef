// Image watch: which weights files of bound versions are opened, as inotify tells it.
//
// Opens through a bind mount do not come to the daemon.  inotify sees them, through whatever mount
// and in whatever namespace, but not who it was.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "store/catalog.hpp"
#include "store/file.hpp"

namespace weightfs::fs {

class ImageWatch {
 public:
  /// Throws Error: io (no inotify: fs.inotify.max_user_instances).
  ImageWatch();

  /// Watches the images of a version; again, if it is watched already.
  /// Throws Error: io (fs.inotify.max_user_watches), not_found.
  void add(const CatalogVersion& version);
  void remove(std::uint64_t version);

  /// Versions of which a weights file was opened since the last call.  Never waits.  An open(2)
  /// that has returned is told by the first call after that.
  std::set<std::uint64_t> take_opened();

 private:
  File inotify_;
  std::mutex mutex_;                      // guards what follows
  std::map<int, std::uint64_t> watches_;  // watch -> version
};

}  // namespace weightfs::fs
