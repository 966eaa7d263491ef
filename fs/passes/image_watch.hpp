// Image watch: which weights files of bound versions are opened, as inotify tells it.
//
// Opens through a bind mount do not come to the daemon.  inotify sees them, through whatever mount
// and in whatever namespace, but not who it was.
//
// Threads: all calls may run in parallel.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "store/base/ranked_mutex.hpp"
#include "store/os/file.hpp"
#include "store/sync/catalog.hpp"

namespace weightfs::fs {

class ImageWatch {
 public:
  /// Throws Error: io (no inotify: fs.inotify.max_user_instances).
  ImageWatch();

  /// Watches the images of a version; again, if it is watched already.
  /// Throws Error: io (fs.inotify.max_user_watches), not_found.
  void add(const CatalogVersion& version);
  void remove(std::uint64_t version);

  struct Opened {
    std::uint64_t version = 0;
    std::string path;  // of the file in the version
    friend auto operator<=>(const Opened&, const Opened&) = default;
  };
  /// Weights files that were opened since the last call.  Never waits.  An open(2) that has
  /// returned is told by the first call after that.
  std::set<Opened> take_opened();

 private:
  File inotify_;
  struct Directory {
    std::uint64_t version = 0;
    std::string path;
  };
  RankedMutex mutex_{LockRank::leaf, "ImageWatch::mutex_"};  // guards what follows
  std::map<int, Directory> watches_;                         // by the watch's number
};

}  // namespace weightfs::fs
