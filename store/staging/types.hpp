// Staging types: the types of the tree that trainers write, for all code that works with it.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/base/error.hpp"

namespace weightfs {

/// Identifies a file or directory; below 2^60.
using StagingId = std::uint64_t;
inline constexpr StagingId kStagingRoot = 1;
inline constexpr StagingId kPublishRoot = 2;
inline constexpr StagingId kFirstStagingId = 16;

inline constexpr std::size_t kNameBytesMax = 255;

/// An Error that knows its errno, for callers of a POSIX tree.
class PosixError : public Error {
 public:
  /// `what` completes "cannot WHAT: strerror".
  PosixError(int number, const std::string& what);
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

/// The calling user, who becomes the owner of new inodes.  The kernel has already applied the umask
/// and checked permissions.
struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// What setattr(2) changes; UTIME_NOW has been replaced by the current time.
struct AttributeChange {
  std::optional<mode_t> mode = {};  // permission bits
  std::optional<uid_t> uid = {};
  std::optional<gid_t> gid = {};
  std::optional<std::uint64_t> size_bytes = {};
  std::optional<timespec> atime = {}, mtime = {};
};

struct StagingName {
  std::string name;
  StagingId id = 0;
  mode_t type = 0;  // S_IFDIR, S_IFREG, S_IFLNK
  /// Position for read_directory() to continue after this entry; stable while names change; 16 or
  /// more.
  std::uint64_t next = 0;
};

/// A file below a directory; used for the seal.
struct StagedFile {
  std::string path;  // relative to that directory
  StagingId id = 0;
  mode_t type = 0;  // as above; directories are listed too
  std::uint64_t generation = 0;
  unsigned writers = 0;
  uid_t uid = 0;  // owner
};

/// Where a handed-over directory was before.
struct StagingOrigin {
  StagingId parent = 0;
  std::string name;
};

/// What staging holds, for status.
struct StagingSummary {
  std::uint64_t files = 0, bytes = 0;  // bytes: on disk
  struct Top {
    std::string name;
    bool is_handed_over = false;  // in publish/
    std::uint64_t files = 0, bytes = 0;
    std::int64_t changed_time = 0;  // newest mtime of a file in it, seconds since 1970
  };
  std::vector<Top> tops;  // names directly below the two roots, by root and name
};

}  // namespace weightfs
