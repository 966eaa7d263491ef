// Page sources: which file the pages of an inode came from that the kernel may have cached.
//
// Where the daemon answers reads, the kernel keeps their bytes by FUSE inode, and those of a
// version never change.  But a version that is damaged is made again, in a new file: then the old
// pages must go, which an OPEN without FOPEN_KEEP_CACHE does.
//
// Of too many files those of the oldest versions are forgotten: inode numbers of versions' files
// ascend with the version (fs/base/inode.hpp), and only these have an image.
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "fs/base/inode.hpp"
#include "store/base/ranked_mutex.hpp"

namespace weightfs::fs {

class PageSources {
 public:
  /// `most`: inodes that are remembered; at least 1.
  explicit PageSources(std::size_t most = 65536) : most_(most) {}

  /// From now on pages may come from `image`.  To be asked by each open that the daemon serves, and
  /// by each READ that reads from another file than its open said: the kernel keeps what
  /// readahead(2) brings in beside passthrough, too.
  /// `image`: a number for the file, as of OpenTable::acquire(); 0: the bytes are checked, or
  /// always the same. Returns: whether cached pages may be kept; false also if nobody knows any
  /// more.  The same for all who have the file open together: the kernel drops pages for each in
  /// its own open(2), and none may read before that.
  bool take(Inode inode, std::uint64_t image);

  /// The last of those who had the file open by the daemon has closed it: the pages are of `image`.
  /// Not for an open that failed, or that nobody heard of: the kernel dropped none for it.
  void note(Inode inode, std::uint64_t image) noexcept;

 private:
  const std::size_t most_;
  RankedMutex mutex_{LockRank::leaf, "PageSources::mutex_"};
  std::map<Inode, std::uint64_t> images_;
  Inode forgotten_up_to_ = 0;  // one that is not in images_, and above this, was never opened
};

}  // namespace weightfs::fs
