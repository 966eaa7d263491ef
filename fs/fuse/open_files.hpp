// Open files: the record of each open.  OPEN determines what the file is and makes the record;
// READ, LSEEK and RELEASE pass its handle.
//
// Staged files have no record: they are found by inode (fs/fuse/staged_files.hpp).
//
// Threads: all calls may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "store/base/ranked_mutex.hpp"

struct fuse_req;

namespace weightfs::fs {

struct FileRange {
  std::uint64_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

/// One open of a file: the calls that depend on its kind.
class OpenFile {
 public:
  virtual ~OpenFile() = default;

  /// Answers a READ, or parks it.
  /// Throws Error, PosixError: then it has done neither.
  virtual void read(fuse_req* req, FileRange range) const = 0;

  [[nodiscard]] virtual std::uint64_t size_bytes() const noexcept { return 0; }

  /// Undoes what the open has counted.  Called once, after OpenFiles::remove().
  virtual void release() const noexcept {}
};

class OpenFiles {
 public:
  /// Returns: a handle.
  std::uint64_t add(std::shared_ptr<const OpenFile> file);

  /// Returns: nullptr if there is none.
  [[nodiscard]] std::shared_ptr<const OpenFile> find(std::uint64_t handle) const;

  /// Calls release() of the removed file.  Unknown handles are ignored.
  void remove(std::uint64_t handle) noexcept;

 private:
  mutable RankedMutex mutex_{LockRank::leaf, "OpenFiles::mutex_"};
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<const OpenFile>> files_;
};

}  // namespace weightfs::fs
