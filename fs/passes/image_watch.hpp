// Image watch: reports which weights files of bound versions are opened, by inotify.
//
// Opens through a bind mount do not reach the daemon. inotify sees them, through any mount and in
// any namespace, but does not say which process opened the file.
//
// Threads: all calls may run in parallel.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "store/base/ranked_mutex.hpp"
#include "store/catalog/catalog.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {

class ImageWatch {
 public:
  /// Throws Error: io (no inotify: fs.inotify.max_user_instances).
  ImageWatch();

  /// Watches the images of a version, anew if it is watched already.
  /// Throws Error: io (fs.inotify.max_user_watches), not_found.
  void add(const CatalogVersion& version);
  void remove(std::uint64_t version);

  struct Opened {
    std::uint64_t version = 0;
    std::string path;  // within the version
    friend auto operator<=>(const Opened&, const Opened&) = default;
  };
  /// Weights files that were opened since the last call.  Never waits.  The first call after an
  /// open(2) has returned reports it.
  std::set<Opened> take_opened();

 private:
  File inotify_;
  struct Directory {
    std::uint64_t version = 0;
    std::string path;
  };
  RankedMutex mutex_{LockRank::leaf, "ImageWatch::mutex_"};  // guards the field below
  std::map<int, Directory> watches_;                         // by watch descriptor
};

}  // namespace weightfs::fs
