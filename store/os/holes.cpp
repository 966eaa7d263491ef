#include "store/os/holes.hpp"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdint>

namespace weightfs {

bool tells_of_holes(int fd) noexcept {
  struct statfs found {};
  if (::fstatfs(fd, &found) != 0) return false;
  const auto type = static_cast<std::uint32_t>(found.f_type);
  return type == EXT4_SUPER_MAGIC || type == XFS_SUPER_MAGIC || type == BTRFS_SUPER_MAGIC ||
         type == TMPFS_MAGIC;
}

bool has_hole(int fd) noexcept {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !tells_of_holes(fd)) return false;
  const off_t hole = ::lseek(fd, 0, SEEK_HOLE);  // a file without one has it at its end
  return hole >= 0 && hole < info.st_size;
}

}  // namespace weightfs
