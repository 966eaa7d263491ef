#include "store/os/lease.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "store/os/file.hpp"

namespace weightfs {

bool nobody_reads_file(const std::filesystem::path& path) {
  // A user's own images may be read-only; any descriptor suffices for a lease.
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  File file(::open(path.c_str(), O_RDWR | kFlags));
  if (!file && errno == EACCES) file = File(::open(path.c_str(), O_RDONLY | kFlags));
  if (!file) return errno == ENOENT;
  if (::fcntl(file.fd(), F_SETLEASE, F_WRLCK) != 0) return false;
  ::fcntl(file.fd(), F_SETLEASE, F_UNLCK);
  return true;
}

namespace {

/// A file, with the number of its names in some directories and in all.
struct Names {
  std::filesystem::path first;
  nlink_t here = 0, all = 0;
};
using Files = std::map<std::pair<dev_t, ino_t>, Names>;

/// Returns: false if the directory cannot be read; a missing one has no files.
bool add_names(const std::filesystem::path& directory, Files& files) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    struct stat found {};
    if (::lstat(entry->path().c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    Names& names = files[{found.st_dev, found.st_ino}];
    if (names.here++ == 0) names.first = entry->path();
    names.all = found.st_nlink;
  }
  return !error || error.value() == ENOENT;
}

}  // namespace

bool nobody_reads(std::span<const std::filesystem::path> directories) {
  Files files;
  for (const std::filesystem::path& directory : directories) {
    if (!add_names(directory, files)) return false;
  }
  return std::all_of(files.begin(), files.end(), [](const auto& file) {
    const Names& names = file.second;
    return names.all > names.here || nobody_reads_file(names.first);
  });
}

bool nobody_reads(const std::filesystem::path& directory) {
  return nobody_reads(std::span(&directory, 1));
}

namespace {

/// NFSv4 and SMB answer EAGAIN where their server has lent them nothing, whether somebody writes or
/// not.
bool is_of_other_hosts(int fd) {
  struct statfs found {};
  if (::fstatfs(fd, &found) != 0) return false;
  const auto type = static_cast<std::uint32_t>(found.f_type);
  return type == NFS_SUPER_MAGIC || type == CIFS_SUPER_MAGIC || type == SMB2_SUPER_MAGIC;
}

}  // namespace

Writers find_writers(int fd) {
  if (is_of_other_hosts(fd)) {
    errno = EOPNOTSUPP;
    return Writers::unknown;
  }
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) {
    return errno == EAGAIN ? Writers::some : Writers::unknown;
  }
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return Writers::none;
}

bool nobody_writes(const std::filesystem::path& path) {
  // A read lease needs a read-only descriptor.
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return file && find_writers(file.fd()) == Writers::none;
}

}  // namespace weightfs
