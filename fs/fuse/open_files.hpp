// Open files: what each open leads to.  An OPEN finds out what the file is and makes the record;
// READ, LSEEK and RELEASE bring its handle.
//
// Staged files are not among them: they are found by their inodes (fs/fuse/staged_files.hpp).
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

/// One open of a file: the calls that its kind answers in its own way.
class OpenFile {
 public:
  virtual ~OpenFile() = default;

  /// Answers a READ, or parks it.  Throws Error, PosixError: then it has done neither.
  virtual void read(fuse_req* req, FileRange range) const = 0;

  [[nodiscard]] virtual std::uint64_t size_bytes() const noexcept { return 0; }

  /// Takes back what the open has counted.  Once, after OpenFiles::remove().
  virtual void release() const noexcept {}
};

class OpenFiles {
 public:
  /// Returns: its handle.
  std::uint64_t add(std::shared_ptr<const OpenFile> file);

  /// nullptr if there is none.
  [[nodiscard]] std::shared_ptr<const OpenFile> find(std::uint64_t handle) const;

  /// Calls release() of what it removes.  Unknown handles are ignored.
  void remove(std::uint64_t handle) noexcept;

 private:
  mutable RankedMutex mutex_{LockRank::leaf, "OpenFiles::mutex_"};
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<const OpenFile>> files_;
};

}  // namespace weightfs::fs
